#include "train/output.h"

#include <cstring>

#include "base/directory_lock.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/process.h"
#include "base/version.h"
#include "bridge/arrays.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSettings = "settings.yaml";
constexpr const char* kCheckpoints = "checkpoints";

// What in `output` a new run would overwrite or be mistaken for; empty if nothing.
std::string found_in(const fs::path& output) {
  if (!fs::exists(output)) return {};
  for (const auto& entry : fs::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json") || name == "config.json") {
      return "a model (" + name + ")";
    }
    if (name == "adapter_config.json") return "an adapter (" + name + ")";
    if (name == kCheckpoints && !fs::is_empty(entry.path())) return kCheckpoints;
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

// The first of `tensors` that is not as `expected` has it.
std::optional<size_t> first_difference(const Parameters& tensors, const Parameters& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i >= tensors.size() || !same_bytes(tensors[i], expected[i])) return i;
  }
  return std::nullopt;
}

// The same of a model saved from f32 weights, in `dtype` or the source's.
std::optional<size_t> first_difference(const Parameters& tensors, const Checkpoint& source, const Parameters& all,
                                       std::optional<Dtype> dtype) {
  const std::optional<mx::Dtype> saved = dtype ? std::optional(mlx_dtype(*dtype)) : std::nullopt;
  for (size_t i = 0; i < all.size(); ++i) {
    const mx::array expected = mx::astype(all[i], saved.value_or(source.dtypes[i]));
    if (i >= tensors.size() || !same_bytes(tensors[i], expected)) return i;
  }
  return std::nullopt;
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
  const bool there = fs::exists(output);
  if (there && !fs::is_directory(output)) fail(ErrorKind::input, "--output: {} is not a directory", output.string());
  if (resume) {
    for (const char* left : {kCheckpoints, kSettings, "metrics.jsonl", DirectoryLock::kFile}) {
      if (fs::exists(output / left)) return;
    }
    fail(ErrorKind::input, "--resume: {} holds no run to go on with: {}", output.string(),
         !there                 ? "there is no such directory"
         : fs::is_empty(output) ? "it is empty"
                                : "nothing in it is what a run leaves (checkpoints, settings.yaml, metrics.jsonl)");
  }
  if (const std::string found = found_in(output); !found.empty()) {
    fail(ErrorKind::input, "--output: {} already holds {}: go on with it with --resume, or name another directory",
         output.string(), found);
  }
}

void check_begins_again(const fs::path& output) {
  const std::string found = found_in(output);
  if (found.empty()) return;
  fail(
      ErrorKind::input,
      "--resume: {0} holds {1}, and no checkpoint that is whole: there is nothing to go on from. Put a checkpoint back "
      "into {0}/checkpoints, or train into another --output{2}",
      output.string(), found,
      found.starts_with("a model") ? fmt::format(" (--model {} begins with that model)", output.string()) : "");
}

void check_holds_no_best(const fs::path& output) {
  for (const auto& entry : fs::directory_iterator(output)) {
    if (entry.path().extension() != ".safetensors") continue;
    fail(ErrorKind::input,
         "{} is not what the last step left and may be of the best validation, of which there is no checkpoint: it "
         "stays as it is. To have the last step's saved instead, move it away, or leave out --load-best-model-at-end",
         entry.path().string());
  }
}

void write_settings(const fs::path& output, const std::vector<Setting>& settings) {
  std::string text = fmt::format(
      "# Settings of this run, by trunkline {}. To repeat it, from anywhere:\n# trunkline train -c {} --output "
      "ANOTHER\n",
      version(), shell_word(fs::absolute(output / kSettings).lexically_normal().string()));
  for (const Setting& setting : settings) text += fmt::format("{}: {}\n", setting.key, setting.value);
  fs::create_directories(output);
  write_file(output / kSettings, text);
}

void save_model(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                const Parameters& parameters, const fs::path& output, std::optional<Dtype> dtype) {
  const Parameters all = full_weights(source, trained, weights, parameters);
  save_checkpoint(source, all, output, dtype ? std::optional(mlx_dtype(*dtype)) : std::nullopt);
  if (const auto tensor = first_difference(load_checkpoint(output).tensors, source, all, dtype)) {
    fail(ErrorKind::system, "{}: {} as reloaded is not what was trained; the checkpoints are untouched",
         output.string(), source.layout[*tensor].name);
  }
}

bool holds_model(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                 const Parameters& parameters, const fs::path& output, std::optional<Dtype> dtype) {
  try {
    return !first_difference(load_checkpoint(output).tensors, source,
                             full_weights(source, trained, weights, parameters), dtype);
  } catch (const Error& error) {
    return false;  // none there, or a part of one
  }
}

void save_trained_adapter(Adapter adapter, const Parameters& tensors, const Checkpoint& base, const fs::path& output,
                          std::optional<Dtype> dtype) {
  adapter.tensors = cast(tensors, dtype ? mlx_dtype(*dtype) : mx::float32);
  save_adapter(adapter, output);
  if (const auto tensor = first_difference(load_adapter(output, base).tensors, adapter.tensors)) {
    fail(ErrorKind::system, "{}: {} as reloaded is not what was trained; the checkpoints are untouched",
         output.string(), adapter.layout[*tensor].name);
  }
}

bool holds_adapter(const Parameters& tensors, const Checkpoint& base, const fs::path& output,
                   std::optional<Dtype> dtype) {
  try {
    return !first_difference(load_adapter(output, base).tensors,
                             cast(tensors, dtype ? mlx_dtype(*dtype) : mx::float32));
  } catch (const Error& error) {
    return false;
  }
}

}  // namespace trunkline
