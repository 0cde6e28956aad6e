#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>

#include "base/fail.h"
#include "cli/command.h"
#include "model/adapter.h"
#include "model/generate.h"
#include "model/text.h"

namespace trunkline {
namespace {

struct GenerateRequest {
  std::filesystem::path model, adapter;
  std::string prompt, system_prompt;
  bool plain = false;
  GenerateOptions options;
};

std::vector<int32_t> prompt_tokens(Text& text, const GenerateRequest& request, const std::string& prompt) {
  if (request.plain) return text.encode(prompt, /* special = */ true);
  nlohmann::json messages = nlohmann::json::array();
  if (!request.system_prompt.empty()) messages.push_back({{"role", "system"}, {"content", request.system_prompt}});
  messages.push_back({{"role", "user"}, {"content", prompt}});
  return text.encode(text.render(messages, nullptr, /* add_generation_prompt = */ true), /* special = */ false);
}

// Prints text as its tokens come. A character may span tokens: until it is whole, the decoder shows U+FFFD at the end.
class Stream {
 public:
  explicit Stream(Text& text) : text_(text) {}

  void add(int32_t token) {
    ids_.push_back(token);
    const std::string whole = text_.decode(ids_);
    if (!whole.ends_with("\xEF\xBF\xBD")) print(whole);
  }
  void finish() {
    print(text_.decode(ids_));
    fmt::print("\n");
  }

 private:
  void print(const std::string& whole) {
    if (whole.size() <= printed_) return;
    const size_t size = whole.size() - printed_;
    if (std::fwrite(whole.data() + printed_, 1, size, stdout) != size || std::fflush(stdout) != 0) {
      fail_errno("standard output");
    }
    printed_ = whole.size();
  }

  Text& text_;
  std::vector<int32_t> ids_;
  size_t printed_ = 0;
};

int run_generate(GenerateRequest request) {
  std::string prompt = request.prompt;
  if (prompt == "-") prompt.assign(std::istreambuf_iterator<char>(std::cin), {});
  if (request.plain && !request.system_prompt.empty()) {
    refuse("--system-prompt needs the chat template, which --ignore-chat-template leaves out");
  }
  require_model(request.model);
  Text text(request.model);
  for (const std::string& warning : text.warnings()) fmt::print(stderr, "warning: {}\n", warning);
  const std::vector<int32_t> tokens = prompt_tokens(text, request, prompt);
  if (tokens.empty()) fail(ErrorKind::input, "--prompt: no tokens to go on from");
  request.options.stop = text.stop_ids();

  Checkpoint checkpoint = load_checkpoint(request.model);
  for (const std::string& warning : checkpoint.warnings) fmt::print(stderr, "warning: {}\n", warning);
  std::optional<Adapter> adapter;
  if (!request.adapter.empty()) {
    adapter = load_adapter(request.adapter, checkpoint);
    for (const std::string& warning : adapter->warnings) fmt::print(stderr, "warning: {}\n", warning);
  }
  const Decoder decoder(checkpoint.shape, adapter ? adapter->shape : AdapterShape{});
  Parameters parameters = cast(checkpoint.tensors, mx::float32);
  if (adapter) std::ranges::copy(cast(adapter->tensors, mx::float32), std::back_inserter(parameters));
  checkpoint.tensors.clear();
  Stream stream(text);
  generate(decoder, parameters, tokens, request.options, [&](int32_t token) {
    stream.add(token);
    return true;
  });
  stream.finish();
  return 0;
}

}  // namespace

Command generate_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("generate", "Let a model answer a prompt");
  const auto request = std::make_shared<GenerateRequest>();
  command->add_option("--model", request->model, "A model directory")->required()->type_name("DIR");
  command->add_option("--adapter", request->adapter, "An adapter for it, in PEFT's files")->type_name("DIR");
  command->add_option("--prompt", request->prompt, "What the user says; -: standard input")
      ->required()
      ->type_name("TEXT");
  command->add_option("--system-prompt", request->system_prompt, "What the system says first")->type_name("TEXT");
  command->add_option("--max-tokens", request->options.max_tokens, "Most tokens to generate, 256")
      ->check(CLI::Range(1, 1 << 24))
      ->type_name("N");
  command->add_option("--temp", request->options.temperature, "Temperature; 0, the default: greedy")
      ->check(number_between(0.0, 1e6))
      ->type_name("T");
  command->add_option("--seed", request->options.seed, "Of the draws at a temperature above 0; 0")->type_name("N");
  command->add_flag("--ignore-chat-template", request->plain, "The prompt as it is, to be continued");
  return {command, [request] { return run_generate(*request); }};
}

}  // namespace trunkline
