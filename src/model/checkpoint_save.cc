#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/directory_lock.h"
#include "base/fail.h"
#include "base/file.h"
#include "model/checkpoint.h"
#include "model/json_edit.h"
#include "model/safetensors.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](std::string_view ending) { return name.ends_with(ending); });
}

// Weights in any format that model repositories carry, and indexes of them.
bool is_weights(const fs::path& path) {
  const std::string name = path.filename().string();
  if (ends_with_any(name, {".safetensors", ".gguf", ".ggml", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".npz", ".onnx",
                           ".onnx_data", ".safetensors.index.json", ".bin.index.json", ".h5.index.json",
                           ".msgpack.index.json"})) {
    return true;
  }
  return name.ends_with(".bin") && (name.find("model") != std::string::npos || name.starts_with("consolidated"));
}

// What one of our training runs leaves beside its model: of no use to the next run, and in its way.
constexpr std::array kRunFiles = {"checkpoints", "metrics.jsonl", "settings.yaml", "loss.svg", DirectoryLock::kFile};

bool is_run_file(const fs::path& relative) {
  return std::ranges::find(kRunFiles, relative.begin()->string()) != kRunFiles.end();
}

// Whether a run had `directory` for its output. A single name may be a coincidence.
bool is_run_output(const fs::path& directory) {
  return std::ranges::count_if(kRunFiles, [&](const char* name) { return fs::exists(directory / name); }) > 1;
}

std::string dtype_name(mx::Dtype dtype) {
  if (dtype == mx::float32) return "float32";
  if (dtype == mx::float16) return "float16";
  if (dtype == mx::bfloat16) return "bfloat16";
  fail(ErrorKind::unsupported, "weights are saved as float32, float16 or bfloat16 alone");
}

void copy_whole(const fs::path& from, const fs::path& to) {
  make_directories(to.parent_path());
  write_file(to, MappedFile(from).text());
}

// Copies what is neither weights nor a run's own. Links are followed to files (a download cache is made of them), not
// to folders.
void copy_other_files(const Checkpoint& checkpoint, const fs::path& target, std::optional<mx::Dtype> dtype) {
  const fs::path& source = checkpoint.directory;
  for (auto it = fs::recursive_directory_iterator(source); it != fs::recursive_directory_iterator(); ++it) {
    const fs::path relative = it->path().lexically_relative(source);
    if (it->is_directory()) {
      const bool hidden = it->path().filename().string().starts_with('.');
      if (hidden || is_run_file(relative) || is_run_output(it->path()) || fs::equivalent(it->path(), target)) {
        it.disable_recursion_pending();
      }
      continue;
    }
    if (is_weights(relative) || is_run_file(relative) || relative.filename() == DirectoryLock::kFile) continue;
    if (!fs::exists(it->path())) {
      fail(ErrorKind::input, "{}: a link to a file that is not there", it->path().string());
    }
    if (!it->is_regular_file()) continue;
    if (relative == "config.json" && (dtype || !checkpoint.config_edits.empty())) {
      std::string text = read_file(it->path());
      for (const auto& [key, value] : checkpoint.config_edits) text = edit_json(text, key, value);
      write_file(target / relative, dtype ? set_config_dtype(text, dtype_name(*dtype)) : text);
    } else {
      copy_whole(it->path(), target / relative);
    }
  }
}

// Indices of the layout, shard by shard: each takes tensors in order until the next would pass the limit.
std::vector<std::vector<size_t>> cut_shards(const std::vector<uint64_t>& bytes, uint64_t limit) {
  std::vector<std::vector<size_t>> shards(1);
  uint64_t held = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (!shards.back().empty() && held + bytes[i] > limit) {
      shards.emplace_back();
      held = 0;
    }
    shards.back().push_back(i);
    held += bytes[i];
  }
  return shards;
}

std::string index_json(const std::vector<std::pair<std::string, std::string>>& tensor_files, uint64_t total_bytes,
                       int64_t parameters) {
  nlohmann::json index;
  index["metadata"] = {{"total_parameters", parameters}, {"total_size", total_bytes}};
  for (const auto& [tensor, file] : tensor_files) index["weight_map"][tensor] = file;
  return index.dump(2) + "\n";
}

void remove_old_weights(const fs::path& directory, const std::set<std::string>& written) {
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.starts_with("model") && ends_with_any(name, {".safetensors", ".safetensors.index.json"});
    if (entry.is_regular_file() && ours && !written.contains(name)) old.push_back(entry.path());
  }
  for (const fs::path& path : old) fs::remove(path);
}

void check_tensors(const Checkpoint& source, const Parameters& tensors) {
  if (tensors.size() != source.layout.size()) {
    fail(ErrorKind::input, "{} tensors given for a model of {}", tensors.size(), source.layout.size());
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const mx::Shape& shape = tensors[i].shape();
    if (!std::equal(shape.begin(), shape.end(), source.layout[i].dims.begin(), source.layout[i].dims.end())) {
      fail(ErrorKind::input, "{}: its shape has changed to [{}]", source.layout[i].name,
           fmt::join(shape.begin(), shape.end(), ", "));
    }
  }
}

void save(const Checkpoint& source, const Parameters& tensors, const fs::path& directory,
          std::optional<mx::Dtype> dtype, uint64_t shard_bytes) {
  check_tensors(source, tensors);
  make_directories(directory);
  if (fs::equivalent(source.directory, directory)) {
    fail(ErrorKind::input, "{}: a model is not saved over its own source", directory.string());
  }
  copy_other_files(source, directory, dtype);

  const auto dtype_at = [&](size_t i) { return dtype.value_or(source.dtypes[i]); };
  std::vector<uint64_t> bytes;
  uint64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    bytes.push_back(tensors[i].size() * mx::size_of(dtype_at(i)));
    total += bytes.back();
  }
  const std::vector<std::vector<size_t>> shards = cut_shards(bytes, shard_bytes);
  std::set<std::string> written;
  std::vector<std::pair<std::string, std::string>> tensor_files;
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string file = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    std::vector<NamedTensor> shard;
    for (size_t i : shards[s]) {
      shard.push_back({source.layout[i].name, tensors[i], dtype_at(i)});
      tensor_files.emplace_back(source.layout[i].name, file);
    }
    write_safetensors(directory / file, shard);
    written.insert(file);
  }
  if (shards.size() > 1) {
    const std::string file = "model.safetensors.index.json";
    write_file(directory / file, index_json(tensor_files, total, source.shape.parameters()));
    written.insert(file);
  }
  remove_old_weights(directory, written);
}

}  // namespace

void save_checkpoint(const Checkpoint& source, const Parameters& tensors, const fs::path& directory,
                     std::optional<mx::Dtype> dtype, uint64_t shard_bytes) {
  try {
    save(source, tensors, directory, dtype, shard_bytes);
  } catch (const fs::filesystem_error& error) {
    fail(ErrorKind::system, "saving the model in {}: {}", directory.string(), error.what());
  }
}

}  // namespace trunkline
