#include <filesystem>
#include <memory>
#include <string>

#include "base/fail.h"
#include "cli/command.h"
#include "model/adapter.h"
#include "model/fuse.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

struct FuseRequest {
  fs::path model, adapter, output;
  std::string dtype;
};

std::optional<mx::Dtype> dtype_of(const std::string& name) {
  if (name == "float32") return mx::float32;
  if (name == "float16") return mx::float16;
  if (name == "bfloat16") return mx::bfloat16;
  return std::nullopt;
}

int run_fuse(const FuseRequest& request) {
  if (fs::exists(request.output) && (!fs::is_directory(request.output) || !fs::is_empty(request.output))) {
    fail(ErrorKind::input, "--output: {} is there already and not empty: name another directory",
         request.output.string());
  }
  Checkpoint base = load_checkpoint(request.model);
  for (const std::string& warning : base.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const Adapter adapter = load_adapter(request.adapter, base);
  const bool was_tied = base.shape.tied;
  const std::optional<mx::Dtype> dtype = dtype_of(request.dtype);
  const Checkpoint fused = fuse(std::move(base), adapter, dtype);
  if (was_tied && !fused.shape.tied) {
    fmt::print(
        "the adapter parts the embedding from the head: the model has two weights for them now "
        "(tie_word_embeddings: false)\n");
  }
  save_and_compare(fused, request.output, dtype);
  fmt::print("merged {} modules into {}; reload equal: all {} tensors\n", adapter.shape.modules.size(),
             request.output.string(), fused.tensors.size());
  return 0;
}

}  // namespace

Command fuse_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("fuse", "Merge an adapter into its base model");
  const auto request = std::make_shared<FuseRequest>();
  command->add_option("--model", request->model, "The base: a model directory")->required()->type_name("DIR");
  command->add_option("--adapter,--adapter-path", request->adapter, "The adapter, in PEFT's files")
      ->required()
      ->type_name("DIR");
  command->add_option("--output,--save-path", request->output, "Where the merged model goes: a new directory")
      ->required()
      ->type_name("DIR");
  command->add_option("--save-dtype", request->dtype, "float32, bfloat16 or float16; by default the base's dtypes")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->type_name("DTYPE");
  return {command, [request] { return run_fuse(*request); }};
}

}  // namespace trunkline
