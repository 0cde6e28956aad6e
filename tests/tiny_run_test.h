// For tests of whole training runs: a model of a few thousand weights, rows of very different lengths, and the program.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/process.h"
#include "base/random.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "model/text_fixture_test.h"

namespace trunkline {

// What a program said and how it ended.
struct Ended {
  int code = 0;
  std::string output, error;
};

// The weights of a tiny llama, seeded; `edit` may change one before it is written.
inline void write_tiny_weights(const std::filesystem::path& model,
                               const std::function<void(const std::string&, mx::array&)>& edit = {}) {
  mx::random::seed(11);
  std::vector<NamedTensor> tensors;
  for (const TensorShape& shape : tensor_shapes(read_model_shape(model / "config.json"))) {
    const mx::Shape dims(shape.dims.begin(), shape.dims.end());
    mx::array value = dims.size() == 1 ? mx::ones(dims) : mx::multiply(mx::random::normal(dims), mx::array(0.08f));
    if (edit) edit(shape.name, value);
    value.eval();
    tensors.push_back({shape.name, value, mx::float32});
  }
  write_safetensors(model / "model.safetensors", tensors);
}

inline nlohmann::json tiny_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", 16},
          {"intermediate_size", 24},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 2},
          {"num_key_value_heads", 1},
          {"head_dim", 8},
          {"vocab_size", 440},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"tie_word_embeddings", true},
          {"eos_token_id", 422},
          {"dtype", "float32"}};
}

// Arguments, and more of them.
inline std::vector<std::string> with(std::vector<std::string> arguments, const std::vector<std::string>& more) {
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A folder with a model, data and outputs, and runs of the program on them.
class TinyRun : public ::testing::Test {
 protected:
  TinyRun() {
    write_file(model() / "config.json", tiny_config().dump(2));
    write_tiny_weights(model());
    std::filesystem::create_directories(data());
    write_rows("train.jsonl", 24, 1);
    write_rows("valid.jsonl", 7, 2);
  }

  std::filesystem::path model() const { return text_.path(); }
  std::filesystem::path data() const { return folder_ / "data"; }
  std::filesystem::path output(const std::string& name = "out") const { return folder_ / name; }

  // Rows of 2 to some 120 tokens.
  void write_rows(const std::string& file, int rows, uint64_t seed) const {
    Random random(seed);
    std::string text;
    for (int i = 0; i < rows; ++i) {
      std::string line;
      const uint64_t words = i % 3 == 0 ? 1 + random.below(2) : 1 + random.below(40);
      for (uint64_t w = 0; w < words; ++w) line += fmt::format("{}{}", w == 0 ? "" : " ", random.below(100));
      text += nlohmann::json{{"text", line}}.dump() + "\n";
    }
    write_file(data() / file, text);
  }

  // `trunkline train` with what every run needs, and `arguments`; on `ranks` ranks under the launcher.
  ProcessOptions train(std::vector<std::string> arguments, const std::string& out = "out", int ranks = 1) const {
    std::vector<std::string> argv = {TRUNKLINE_BINARY_DIR "/trunkline"};
    if (ranks > 1) argv.insert(argv.end(), {"launch", "-n", std::to_string(ranks), "--", argv[0]});
    argv.insert(argv.end(), {"train", "--model", model(), "--data", data(), "--output", output(out)});
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    return program(argv);
  }

  ProcessOptions program(const std::vector<std::string>& argv) const {
    ProcessOptions options;
    options.argv = argv;
    options.environment = {{"XDG_CACHE_HOME", (folder_ / "cache").string()}, {"OPENBLAS_NUM_THREADS", "1"}};
    options.input = ProcessOptions::Stream::null;
    options.output = options.error = ProcessOptions::Stream::pipe;
    return options;
  }

  static Ended finish(Process& process) {
    Ended ended;
    std::thread errors([&] { ended.error = read_all(process.error); });
    ended.output = read_all(process.output);
    errors.join();
    const auto status = process.wait(Deadline::after(std::chrono::seconds(60)));
    ended.code = status ? status->code : -1;
    return ended;
  }
  static Ended run(const ProcessOptions& options) {
    Process process = Process::start(options);
    return finish(process);
  }
  // Of a run refused for too little memory: the limit in GiB that it names.
  static std::string least_limit(const Ended& refused) {
    const std::string said = refused.error + refused.output, before = "give --memory-limit ";
    const size_t at = said.find(before);
    if (at == std::string::npos) {
      ADD_FAILURE() << "no limit is named in: " << said;
      return "1";
    }
    return said.substr(at + before.size(), 6);
  }
  // Reads the program's output up to a line with `text` in it.
  static std::string read_until(const Process& process, const std::string& text) {
    std::string seen;
    char byte = 0;
    while (::read(process.output.get(), &byte, 1) == 1) {
      seen += byte;
      if (byte == '\n' && seen.find(text) != std::string::npos) return seen;
    }
    ADD_FAILURE() << "no line with \"" << text << "\" in:\n" << seen;
    return seen;
  }

  std::vector<nlohmann::json> metrics(const std::string& out = "out") const {
    std::vector<nlohmann::json> lines;
    std::istringstream text(read_file(output(out) / "metrics.jsonl"));
    for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::string weights(const std::string& out = "out") const { return read_file(output(out) / "model.safetensors"); }
  // The largest difference between two runs' weights.
  double largest_difference(const std::string& a, const std::string& b) const {
    const Checkpoint x = load_checkpoint(output(a)), y = load_checkpoint(output(b));
    double largest = 0.0;
    for (size_t i = 0; i < x.tensors.size(); ++i) {
      const double difference = mx::max(mx::abs(mx::subtract(x.tensors[i], y.tensors[i]))).item<float>();
      largest = std::max(largest, difference);
    }
    return largest;
  }

  // A run that is killed once the checkpoint of `step` is there, and then resumed, is the run that was never stopped:
  // metrics, the newest checkpoint and the `saved` files have the same bits. The runs are "whole" and "cut".
  void expect_killed_and_resumed_alike(const std::vector<std::string>& settings, int64_t step,
                                       const std::vector<std::string>& saved) const {
    ASSERT_EQ(run(train(settings, "whole")).code, 0);
    Process process = Process::start(train(settings, "cut"));
    read_until(process, fmt::format("checkpoints/{}", step));
    process.signal(SIGKILL);
    EXPECT_EQ(finish(process).code, 128 + SIGKILL);
    for (const std::string& file : saved) EXPECT_FALSE(std::filesystem::exists(output("cut") / file));
    const Ended resumed = run(train(with(settings, {"--resume"}), "cut"));
    ASSERT_EQ(resumed.code, 0) << resumed.error;
    EXPECT_NE(resumed.output.find(fmt::format("going on from step {}", step)), std::string::npos) << resumed.output;
    EXPECT_NE(resumed.output.find("reload equal"), std::string::npos) << resumed.output;
    const auto a = metrics("whole"), b = metrics("cut");
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"step", "loss", "val_loss", "learning_rate", "grad_norm", "trained_tokens"}) {
        EXPECT_EQ(a[i].value(key, nlohmann::json()), b[i].value(key, nlohmann::json())) << i << " " << key;
      }
    }
    std::vector<std::string> files = saved;
    for (const char* file : {"weights.safetensors", "optimizer.safetensors"}) {
      files.push_back(fmt::format("checkpoints/{}/{}", a.back()["step"].get<int64_t>(), file));
    }
    for (const std::string& file : files) {
      EXPECT_EQ(read_file(output("cut") / file), read_file(output("whole") / file)) << file;
    }
  }

  TestFolder folder_;
  TestModel text_{template_source("chatml")};

 private:
  static std::string read_all(const Fd& fd) {
    std::string text;
    char buffer[4096];
    for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(size));
    }
    return text;
  }
};

}  // namespace trunkline
