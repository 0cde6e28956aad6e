#include "model/checkpoint.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/fail.h"
#include "base/file.h"
#include "base/json_reason.h"
#include "model/safetensors.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";

// At most a handful of names, so that a message stays readable.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  const size_t shown = std::min(names.size(), kShown);
  const std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  return shown == names.size() ? text : fmt::format("{} and {} more", text, names.size() - shown);
}

// Files named as an index names its own.
std::vector<std::string> shards_in(const fs::path& directory) {
  static const std::regex shard(R"(model-\d+-of-\d+\.safetensors)");
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (std::regex_match(name, shard)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// The index's table from tensor to file.
std::map<std::string, std::string> read_index(const fs::path& path) {
  std::map<std::string, std::string> files;
  try {
    const std::string text = read_file(path);
    require_content(path, text);
    const nlohmann::json index = nlohmann::json::parse(text);
    for (const auto& [tensor, file] : index.at("weight_map").items()) files[tensor] = file.get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::input, "{}: not an index of safetensors: {}", path.string(), json_reason(error.what()));
  }
  for (const auto& [tensor, file] : files) {
    if (fs::path(file).filename() != file || file == "." || file == "..") {
      fail(ErrorKind::input, "{}: weight_map: {}: {} is not a file of this directory", path.string(), tensor, file);
    }
  }
  return files;
}

// Is `file` where an index has every tensor? So mlx_lm writes it beside a single file.
bool names_alone(const fs::path& index, const std::string& file) {
  try {
    const auto places = read_index(index);
    return std::ranges::all_of(places, [&](const auto& place) { return place.second == file; });
  } catch (const Error&) {
    return false;  // it is not used, so that it need not be whole
  }
}

// All tensors of a checkpoint, by name, each in the file that holds it.
class TensorFiles {
 public:
  TensorFiles(const fs::path& directory, std::vector<std::string>& warnings) {
    const fs::path single = directory / kSingle;
    const fs::path index = directory / kIndex;
    if (fs::exists(single)) {
      source_ = single;
      add(single, {});
      if (fs::exists(index) && !names_alone(index, kSingle)) {
        warnings.push_back(fmt::format("{} and {} both exist: the single file is used", single.string(), kIndex));
      }
    } else if (fs::exists(index)) {
      source_ = index;
      add_shards(directory, index);
    } else {
      if (const std::vector<std::string> shards = shards_in(directory); !shards.empty()) {
        fail(ErrorKind::input, "{}: its shards are here ({}), but {}, which says what they hold, is not: fetch it too",
             directory.string(), listed(shards), kIndex);
      }
      fail(ErrorKind::input, "{}: neither {} nor {} is here (weights of other formats must be converted)",
           directory.string(), kSingle, kIndex);
    }
  }

  // The file to name in messages: the single one, or the index.
  const fs::path& source() const { return source_; }
  bool has(const std::string& name) const { return places_.contains(name); }
  const SafetensorsFile& file_of(const std::string& name) const { return files_[places_.at(name)]; }
  const StoredTensor& entry(const std::string& name) const { return file_of(name).tensors().at(name); }
  mx::array load(const std::string& name) const { return file_of(name).load(name); }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [name, place] : places_) names.push_back(name);
    return names;
  }

 private:
  void add_shards(const fs::path& directory, const fs::path& index) {
    const std::map<std::string, std::string> weight_map = read_index(index);
    std::set<std::string> shards;
    for (const auto& [tensor, file] : weight_map) shards.insert(file);
    std::vector<std::string> absent;
    for (const std::string& shard : shards) {
      if (!fs::exists(directory / shard)) absent.push_back(shard);
    }
    if (!absent.empty()) {
      fail(ErrorKind::input, "{}: these shards are not in the directory: {} (download the model again)", index.string(),
           fmt::join(absent, ", "));
    }
    for (const std::string& shard : shards) add(directory / shard, weight_map);
    std::vector<std::string> lost;
    for (const auto& [tensor, file] : weight_map) {
      if (!has(tensor)) lost.push_back(fmt::format("{} (in {})", tensor, file));
    }
    if (!lost.empty()) {
      fail(ErrorKind::input, "{}: these tensors are not in the shards named for them: {}", index.string(),
           listed(lost));
    }
  }

  void add(const fs::path& path, const std::map<std::string, std::string>& weight_map) {
    files_.emplace_back(path);
    for (const auto& [name, tensor] : files_.back().tensors()) {
      const auto named = weight_map.find(name);
      if (named != weight_map.end() && named->second != path.filename()) continue;
      if (!places_.emplace(name, files_.size() - 1).second) {
        fail(ErrorKind::input, "{}: {} is also in {}", path.string(), name, file_of(name).path().string());
      }
    }
  }

  fs::path source_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, size_t> places_;
};

// Tensors that older writers left and that hold nothing to learn.
bool is_derived(const std::string& name) { return name.ends_with(".rotary_emb.inv_freq"); }

// Modules without scales are plain, whatever config.json says of the others.
void find_plain_modules(const TensorFiles& files, ModelShape& shape) {
  ModelShape plain = shape;
  plain.quantization.reset();
  for (const TensorShape& tensor : tensor_shapes(plain)) {
    if (tensor.dims.size() != 2) continue;
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    if (shape.quantization->modules.contains(module)) continue;
    if (!files.has(module + ".scales")) shape.quantization->modules[module] = std::nullopt;
  }
  for (const TensorShape& tensor : tensor_shapes(plain)) {
    if (tensor.dims.size() != 2) continue;
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    const auto packing = shape.quantization->of(module);
    if (packing && (tensor.dims[1] % packing->group_size != 0 || tensor.dims[1] * packing->bits % 32 != 0)) {
      fail(ErrorKind::input, "{}: quantization: rows of {}, {} values, are no whole groups of {}",
           files.source().string(), module, tensor.dims[1], packing->group_size);
    }
  }
}

void check_names(const TensorFiles& files, const Checkpoint& checkpoint) {
  std::set<std::string> known;
  std::vector<std::string> missing, unknown;
  for (const TensorShape& tensor : checkpoint.layout) {
    known.insert(tensor.name);
    if (!files.has(tensor.name)) missing.push_back(tensor.name);
  }
  if (missing == std::vector<std::string>{kHead}) {
    fail(ErrorKind::input, "{}: {} is missing, and config.json does not tie it (tie_word_embeddings) to the embedding",
         files.source().string(), kHead);
  }
  if (!missing.empty()) fail(ErrorKind::input, "{}: missing: {}", files.source().string(), listed(missing));
  for (const std::string& name : files.names()) {
    if (known.contains(name) || is_derived(name) || (checkpoint.shape.tied && name == kHead)) continue;
    unknown.push_back(name);
  }
  if (!unknown.empty()) {
    fail(ErrorKind::unsupported, "{}: tensors that this model does not have: {}", files.source().string(),
         listed(unknown));
  }
}

void check_tensor(const TensorFiles& files, const TensorShape& expected) {
  const StoredTensor& stored = files.entry(expected.name);
  const std::string file = files.file_of(expected.name).path().string();
  if (expected.packed && stored.dtype != "U32") {
    fail(ErrorKind::input, "{}: {}: dtype {}, but config.json makes it quantized: U32", file, expected.name,
         stored.dtype);
  }
  if (!expected.packed && stored.dtype != "F32" && stored.dtype != "F16" && stored.dtype != "BF16") {
    fail(ErrorKind::unsupported, "{}: {}: dtype {} is not supported (F32, F16 and BF16 are)", file, expected.name,
         stored.dtype);
  }
  if (stored.dims != expected.dims) {
    fail(ErrorKind::input, "{}: {}: its shape is [{}], config.json makes it [{}]", file, expected.name,
         fmt::join(stored.dims, ", "), fmt::join(expected.dims, ", "));
  }
}

// A head that is stored although it is tied: dropped if it is the embedding, told if it is not.
void check_tied_head(const TensorFiles& files, const mx::array& embedding, std::vector<std::string>& warnings) {
  if (!files.has(kHead)) return;
  const mx::array head = files.load(kHead);
  const bool equal =
      head.shape() == embedding.shape() &&
      (head.dtype() == embedding.dtype()
           ? std::equal(head.data<char>(), head.data<char>() + head.nbytes(), embedding.data<char>())
           : mx::array_equal(mx::astype(head, mx::float32), mx::astype(embedding, mx::float32)).item<bool>());
  if (!equal) {
    warnings.push_back(
        fmt::format("{}: {} differs from the embedding although config.json ties them "
                    "(tie_word_embeddings): the embedding is used for both",
                    files.file_of(kHead).path().string(), kHead));
  }
}

}  // namespace

void require_model(const fs::path& directory) {
  if (!fs::is_directory(directory)) fail(ErrorKind::input, "{}: not a directory", directory.string());
  if (fs::exists(directory / "config.json")) return;
  if (fs::exists(directory / "adapter_config.json")) {
    fail(ErrorKind::input, "{}: holds an adapter, not a model: use --model BASE --adapter {}", directory.string(),
         directory.string());
  }
  fail(ErrorKind::input, "{}: no config.json here: not a model's directory", directory.string());
}

Checkpoint load_checkpoint(const fs::path& directory) {
  require_model(directory);
  Checkpoint checkpoint;
  checkpoint.directory = directory;
  checkpoint.shape = read_model_shape(directory / "config.json");
  const TensorFiles files(directory, checkpoint.warnings);
  if (checkpoint.shape.quantization) find_plain_modules(files, checkpoint.shape);
  checkpoint.layout = tensor_shapes(checkpoint.shape);
  check_names(files, checkpoint);
  for (const TensorShape& tensor : checkpoint.layout) check_tensor(files, tensor);
  for (const TensorShape& tensor : checkpoint.layout) {
    checkpoint.tensors.push_back(files.load(tensor.name));
    checkpoint.dtypes.push_back(checkpoint.tensors.back().dtype());
  }
  if (checkpoint.shape.tied) check_tied_head(files, checkpoint.tensors.front(), checkpoint.warnings);
  return checkpoint;
}

Parameters cast(const Parameters& tensors, mx::Dtype dtype) {
  Parameters result;
  result.reserve(tensors.size());
  for (const mx::array& tensor : tensors) {
    result.push_back(tensor.dtype() == mx::uint32 ? tensor : mx::astype(tensor, dtype));
  }
  return result;
}

}  // namespace trunkline
