#include "conform/golden_case.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/fail.h"
#include "model/safetensors.h"

namespace trunkline::conform {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kRunNames[] = {"sgd", "sgd-momentum", "adamw", "adamw-clip"};

mx::array load_as(const SafetensorsFile& file, const std::string& name, mx::Dtype dtype) {
  mx::array value = mx::contiguous(mx::astype(file.load(name), dtype));
  value.eval();
  return value;
}

std::vector<int32_t> to_vector(const mx::array& value) {
  const auto* data = value.data<int32_t>();
  return {data, data + value.size()};
}

void read_forward(GoldenCase& golden) {
  const SafetensorsFile file(golden.directory / "forward.safetensors");
  const mx::array ids = load_as(file, "input_ids", mx::int32);
  const mx::array labels = load_as(file, "labels", mx::int32);
  if (ids.ndim() != 2 || ids.size() == 0 || labels.shape() != ids.shape()) {
    fail(ErrorKind::input, "{}: input_ids and labels are not of one shape [rows, length]", file.path().string());
  }
  golden.rows = ids.shape(0);
  golden.length = ids.shape(1);
  golden.ids = to_vector(ids);
  golden.labels = to_vector(labels);
  const auto vocab = static_cast<int>(golden.checkpoint.shape.vocab);
  for (int32_t id : golden.ids) {
    if (id < 0 || id >= vocab) fail(ErrorKind::input, "{}: input id {} of {}", file.path().string(), id, vocab);
  }
  for (int32_t id : golden.labels) {
    if (id >= vocab || (id < 0 && id != -100)) fail(ErrorKind::input, "{}: label {}", file.path().string(), id);
  }
  golden.logits = load_as(file, "logits", mx::float32);
  if (golden.logits.shape() != mx::Shape{golden.rows, golden.length, vocab}) {
    fail(ErrorKind::input, "{}: logits are not [rows, length, vocabulary]", file.path().string());
  }
  const mx::array loss = load_as(file, "loss", mx::float32);
  if (loss.size() != 1) fail(ErrorKind::input, "{}: loss is not one number", file.path().string());
  golden.loss = loss.data<float>()[0];
}

void read_case_json(GoldenCase& golden) {
  const fs::path path = golden.directory / "case.json";
  try {
    const json values = json::parse(read_file(path));
    golden.grad_norm = values.at("grad_norm").get<double>();
    for (const char* name : kRunNames) {
      GoldenRun run = read_run(name, values.at("optimizers").at(name).get<std::string>());
      run.losses = values.at("losses").at(name).get<std::vector<double>>();
      if (static_cast<int>(run.losses.size()) != run.steps + 1) {
        fail(ErrorKind::input, "losses.{}: {} losses for {} steps", name, run.losses.size(), run.steps);
      }
      golden.runs.push_back(std::move(run));
    }
    golden.prompt = values.at("greedy").at("prompt").get<std::vector<int32_t>>();
    golden.continuation = values.at("greedy").at("tokens").get<std::vector<int32_t>>();
    if (golden.continuation.empty()) fail(ErrorKind::input, "greedy.tokens is empty");
  } catch (const json::exception& error) {
    fail(ErrorKind::input, "{}: {}", path.string(), error.what());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace

GoldenRun read_run(const std::string& name, const std::string& description) {
  // A phrase, and what its numbers say.
  struct Phrase {
    const char* pattern;
    std::function<void(GoldenRun&, const std::vector<double>&)> apply;
  };
  const std::string number = R"(([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?))";
  static const std::vector<Phrase> phrases = {
      {"(?:sgd|adamw?)?\\s*lr #", [](GoldenRun& run, const auto& n) { run.learning_rate = n[0]; }},
      {"momentum #", [](GoldenRun& run, const auto& n) { run.optimizer.momentum = n[0]; }},
      {"(?:decoupled )?weight decay #(?: \\(added to the gradient\\)| on every parameter)?",
       [](GoldenRun& run, const auto& n) { run.optimizer.weight_decay = n[0]; }},
      {"no weight decay", [](GoldenRun& run, const auto&) { run.optimizer.weight_decay = 0; }},
      {"betas # #", [](GoldenRun& run,
                       const auto& n) { std::tie(run.optimizer.beta1, run.optimizer.beta2) = std::tie(n[0], n[1]); }},
      {"eps #", [](GoldenRun& run, const auto& n) { run.optimizer.epsilon = n[0]; }},
      {"bias correction", [](GoldenRun& run, const auto&) { run.optimizer.bias_correction = true; }},
      {"no bias correction", [](GoldenRun& run, const auto&) { run.optimizer.bias_correction = false; }},
      {"(?:global )?gradient norm clipped to #", [](GoldenRun& run, const auto& n) { run.max_norm = n[0]; }},
      {"inputs and labels are the base case's", [](GoldenRun&, const auto&) {}},
      {"# steps?", [](GoldenRun& run, const auto& n) { run.steps = static_cast<int>(n[0]); }}};

  GoldenRun run;
  run.name = name;
  run.optimizer.kind = name.starts_with("adam") ? OptimizerOptions::Kind::adamw : OptimizerOptions::Kind::sgd;
  run.optimizer.weight_decay = 0;
  run.optimizer.momentum = 0;
  run.optimizer.beta1 = 0.9;
  run.optimizer.beta2 = 0.999;
  run.optimizer.epsilon = 1e-8;
  // "betas 0.9, 0.95" is one phrase; other commas end one.
  const std::string text = std::regex_replace(description, std::regex("(betas [^,]+), *([.0-9])"), "$1 $2");
  const std::regex separator(R"(\s*[,;]\s*)");
  for (std::sregex_token_iterator part(text.begin(), text.end(), separator, -1), end; part != end; ++part) {
    const std::string said = part->str();
    const bool understood = std::any_of(phrases.begin(), phrases.end(), [&](const Phrase& phrase) {
      std::smatch match;
      const std::regex pattern(std::regex_replace(phrase.pattern, std::regex("#"), number), std::regex::icase);
      if (!std::regex_match(said, match, pattern)) return false;
      std::vector<double> numbers;
      for (size_t i = 1; i < match.size(); ++i) numbers.push_back(std::stod(match[i].str()));
      phrase.apply(run, numbers);
      return true;
    });
    if (!understood) fail(ErrorKind::input, "optimizers.{}: \"{}\" is not understood", name, said);
  }
  if (!(run.learning_rate > 0) || run.steps < 1) {
    fail(ErrorKind::input, "optimizers.{}: no learning rate or no steps in \"{}\"", name, description);
  }
  return run;
}

mx::array load_as(const SafetensorsFile& file, const std::string& name, mx::Dtype dtype,
                  const std::vector<int64_t>& dims) {
  mx::array value = load_as(file, name, dtype);
  const mx::Shape& shape = value.shape();
  if (!std::equal(shape.begin(), shape.end(), dims.begin(), dims.end())) {
    fail(ErrorKind::input, "{}: {}: wrong shape", file.path().string(), name);
  }
  return value;
}

Parameters GoldenCase::tensors(const std::string& name) const {
  const SafetensorsFile file(directory / (name + ".safetensors"));
  Parameters tensors;
  for (const TensorShape& tensor : checkpoint.layout) {
    tensors.push_back(load_as(file, tensor.name, mx::float32, tensor.dims));
  }
  if (file.tensors().size() != tensors.size()) {
    fail(ErrorKind::input, "{}: {} tensors for a model of {}", file.path().string(), file.tensors().size(),
         tensors.size());
  }
  return tensors;
}

GoldenCase read_base(const fs::path& directory) {
  if (!fs::is_directory(directory)) fail(ErrorKind::input, "{}: not a directory", directory.string());
  GoldenCase golden{.directory = directory,
                    .checkpoint = load_checkpoint(directory / "model"),
                    .ids = {},
                    .labels = {},
                    .logits = mx::array(0.0f),
                    .runs = {},
                    .prompt = {},
                    .continuation = {}};
  read_forward(golden);
  return golden;
}

GoldenCase read_case(const fs::path& directory) {
  GoldenCase golden = read_base(directory);
  read_case_json(golden);
  return golden;
}

}  // namespace trunkline::conform
