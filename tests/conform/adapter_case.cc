#include "conform/adapter_case.h"

#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline::conform {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// As PEFT names a tensor while it trains: with the adapter's name, "default", in it.
std::string trained_name(const std::string& name) {
  const std::string weight = ".weight";
  if (name.ends_with(weight)) {
    return "base_model.model." + name.substr(0, name.size() - weight.size()) + ".default" + weight;
  }
  return "base_model.model." + name + (name.ends_with(".lora_magnitude_vector") ? ".default.weight" : ".default");
}

json read_json(const fs::path& path) {
  try {
    return json::parse(read_file(path));
  } catch (const json::exception& error) {
    fail(ErrorKind::input, "{}: {}", path.string(), error.what());
  }
}

std::vector<mx::array> read_gradients(const fs::path& path, const std::vector<TensorShape>& layout) {
  const SafetensorsFile file(path);
  std::vector<mx::array> gradients;
  for (const TensorShape& tensor : layout) {
    gradients.push_back(load_as(file, trained_name(tensor.name), mx::float32, tensor.dims));
  }
  if (file.tensors().size() != gradients.size()) {
    fail(ErrorKind::input, "{}: {} tensors for an adapter of {}", path.string(), file.tensors().size(),
         gradients.size());
  }
  return gradients;
}

}  // namespace

bool is_adapter_case(const fs::path& directory) { return fs::exists(directory / "before"); }

AdapterCase read_adapter_case(const fs::path& directory) {
  const fs::path file = directory / "case.json";
  const json values = read_json(file);
  GoldenRun run;
  std::string base;
  double loss = 0;
  int64_t trainable = 0;
  try {
    base = values.at("base").get<std::string>();
    loss = values.at("loss").get<double>();
    trainable = values.at("trainable").get<int64_t>();
    run = read_run("adamw", values.at("optimizer").get<std::string>());
    run.losses = values.at("losses").get<std::vector<double>>();
  } catch (const json::exception& error) {
    fail(ErrorKind::input, "{}: {}", file.string(), error.what());
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", file.string(), error.what()));
  }
  if (static_cast<int>(run.losses.size()) != run.steps + 1) {
    fail(ErrorKind::input, "{}: losses: {} losses for {} steps", file.string(), run.losses.size(), run.steps);
  }
  const fs::path whole = fs::absolute(directory).lexically_normal();
  GoldenCase golden = read_base(whole.parent_path().parent_path() / "golden" / base);
  Adapter before = load_adapter(directory / "before", golden.checkpoint);
  Adapter after = load_adapter(directory / "after", golden.checkpoint);
  const std::vector<int64_t> dims = {golden.rows, golden.length, golden.checkpoint.shape.vocab};
  const SafetensorsFile forward(directory / "forward.safetensors"), last(directory / "after.safetensors");
  std::vector<mx::array> gradients = read_gradients(directory / "grads.safetensors", before.layout);
  return {.directory = directory,
          .base = std::move(golden),
          .before = std::move(before),
          .after = std::move(after),
          .logits = load_as(forward, "logits", mx::float32, dims),
          .after_logits = load_as(last, "logits", mx::float32, dims),
          .merged_logits = load_as(last, "merged_logits", mx::float32, dims),
          .loss = loss,
          .trainable = trainable,
          .run = std::move(run),
          .gradients = std::move(gradients)};
}

}  // namespace trunkline::conform
