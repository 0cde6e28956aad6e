#include "train/output.h"

#include <cstring>

#include "base/fail.h"
#include "base/file.h"
#include "base/version.h"
#include "bridge/arrays.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "settings.yaml";

// What in `output` a new run would overwrite or be mistaken for; empty if nothing.
std::string found_in(const fs::path& output) {
  if (!fs::exists(output)) return {};
  if (!fs::is_directory(output)) fail(ErrorKind::input, "--output: {} is not a directory", output.string());
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == "config.json") {
      return "a model (" + name + ")";
    }
    if (name == "adapter_config.json") return "an adapter (" + name + ")";
    if (name == "checkpoints" && !fs::is_empty(entry.path())) return "checkpoints";
  }
  return {};
}

mx::Dtype mlx_dtype(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return mx::float32;
    case Dtype::f16: return mx::float16;
    case Dtype::bf16: return mx::bfloat16;
    default: fail(ErrorKind::input, "save_dtype: {} is not a dtype for weights", name_of(dtype));
  }
}

bool same_bytes(const mx::array& a, const mx::array& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  const mx::array x = in_row_order(a), y = in_row_order(b);
  return std::memcmp(x.data<char>(), y.data<char>(), x.nbytes()) == 0;
}

// All of the model's weights in f32, from those that were trained and `parameters`.
Parameters full_weights(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                        const Parameters& parameters) {
  Parameters all = parameters;
  const bool rounded = parameters.front().dtype() != mx::float32;
  if (rounded && weights.size() < all.size()) {
    all = load_checkpoint(source.directory).tensors;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (trained[i]) continue;
      if (i >= all.size() || !same_bytes(mx::astype(all[i], parameters[i].dtype()), parameters[i])) {
        fail(ErrorKind::mismatch, "{}: {} is not what training began with; the checkpoints are untouched",
             source.directory.string(), source.layout[i].name);
      }
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) all[trained.tensors()[i]] = weights[i];
  return cast(all, mx::float32);
}

}  // namespace

void check_output(const fs::path& output, bool resume) {
  if (resume) {
    if (fs::exists(output / kSettings)) return;
    fail(ErrorKind::input, "--resume: {} holds no run to go on with ({} is not there)", output.string(), kSettings);
  }
  if (const std::string found = found_in(output); !found.empty()) {
    fail(ErrorKind::input, "--output: {} already holds {}: go on with it with --resume, or name another directory",
         output.string(), found);
  }
}

void write_settings(const fs::path& output, const std::vector<Setting>& settings) {
  std::string text = fmt::format("# Settings of this run, by trunkline {}. To repeat it: trunkline train -c {}\n",
                                 version(), kSettings);
  for (const Setting& setting : settings) text += fmt::format("{}: {}\n", setting.key, setting.value);
  fs::create_directories(output);
  write_file(output / kSettings, text);
}

void save_model(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                const Parameters& parameters, const fs::path& output, std::optional<Dtype> dtype) {
  const Parameters all = full_weights(source, trained, weights, parameters);
  const std::optional<mx::Dtype> saved = dtype ? std::optional(mlx_dtype(*dtype)) : std::nullopt;
  save_checkpoint(source, all, output, saved);
  const Checkpoint reloaded = load_checkpoint(output);
  for (size_t i = 0; i < all.size(); ++i) {
    if (!same_bytes(reloaded.tensors[i], mx::astype(all[i], saved.value_or(source.dtypes[i])))) {
      fail(ErrorKind::system, "{}: {} as reloaded is not what was trained; the checkpoints are untouched",
           output.string(), source.layout[i].name);
    }
  }
}

void save_trained_adapter(Adapter adapter, const Parameters& tensors, const Checkpoint& base, const fs::path& output,
                          std::optional<Dtype> dtype) {
  const mx::Dtype saved = dtype ? mlx_dtype(*dtype) : mx::float32;
  adapter.tensors = cast(tensors, saved);
  save_adapter(adapter, output);
  const Adapter reloaded = load_adapter(output, base);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!same_bytes(reloaded.tensors[i], adapter.tensors[i])) {
      fail(ErrorKind::system, "{}: {} as reloaded is not what was trained; the checkpoints are untouched",
           output.string(), adapter.layout[i].name);
    }
  }
}

}  // namespace trunkline
