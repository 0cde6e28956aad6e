#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <set>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/random.h"
#include "model/decoder.h"
#include "model/linear.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr const char* kBaseCopy = ".base_layer.weight";
constexpr const char* kBaseDigest = "trunkline_base";  // in the metadata
constexpr size_t kSampled = 16, kSampleBytes = 1024;   // pieces of a tensor that its base's digest takes

void check_tensor(const SafetensorsFile& file, const std::string& name, const std::vector<int64_t>& dims) {
  const StoredTensor& stored = file.tensors().at(name);
  if (stored.dtype != "F32" && stored.dtype != "F16" && stored.dtype != "BF16") {
    fail(ErrorKind::unsupported, "{}: {}: dtype {} is not supported (F32, F16 and BF16 are)", file.path().string(),
         name, stored.dtype);
  }
  if (stored.dims != dims) {
    fail(ErrorKind::input, "{}: {}: its shape is [{}], {} and the base make it [{}]", file.path().string(), name,
         fmt::join(stored.dims, ", "), kConfig, fmt::join(dims, ", "));
  }
}

mx::array load_finite(const SafetensorsFile& file, const std::string& name) {
  mx::array value = file.load(name);
  if (!mx::all(mx::isfinite(value)).item<bool>()) {
    fail(ErrorKind::input, "{}: {}: holds an infinity or what is not a number", file.path().string(), name);
  }
  return value;
}

// The weight of the embedding or the head as PEFT stores it beside their adapter. It must be the base's.
void load_base_copy(const SafetensorsFile& file, const std::string& name, const Checkpoint& base, Adapter& adapter) {
  std::string weight = name.substr(std::string(kPrefix).size());
  weight.replace(weight.size() - std::string(kBaseCopy).size(), std::string::npos, ".weight");
  if (base.shape.tied && weight == "lm_head.weight") weight = "model.embed_tokens.weight";
  const auto place = std::ranges::find(base.layout, weight, &TensorShape::name);
  if (place == base.layout.end())
    fail(ErrorKind::input, "{}: {}: no such tensor in the base", file.path().string(), name);
  check_tensor(file, name, place->dims);
  const mx::array value = file.load(name);
  const mx::array& own = base.tensors[static_cast<size_t>(place - base.layout.begin())];
  if (!mx::array_equal(mx::astype(value, mx::float32), mx::astype(own, mx::float32)).item<bool>()) {
    fail(ErrorKind::input, "{}: {} is not the base's {}: the adapter belongs to another base", file.path().string(),
         name, weight);
  }
  adapter.base_copies.push_back({name, value, value.dtype()});
}

// Bytes spread evenly over a tensor; all of a small one.
void append_sample(const mx::array& tensor, std::string& text) {
  mx::array ordered = mx::contiguous(tensor);
  ordered.eval();
  const std::string_view bytes(ordered.data<char>(), ordered.nbytes());
  if (bytes.size() <= kSampled * kSampleBytes) {
    text += bytes;
    return;
  }
  const size_t last = bytes.size() - kSampleBytes;
  for (size_t i = 0; i < kSampled; ++i) text += bytes.substr(last / (kSampled - 1) * i, kSampleBytes);
}

double normal(Random& random) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return radius * std::cos(2.0 * std::numbers::pi * random.uniform());
}

template <typename Draw>
mx::array drawn(const TensorShape& shape, Draw draw) {
  std::vector<float> values(static_cast<size_t>(shape.dims[0] * shape.dims[1]));
  for (float& value : values) value = static_cast<float>(draw());
  return mx::array(values.begin(), {shape.dims.begin(), shape.dims.end()}, mx::float32);
}

}  // namespace

std::string digest_of_base(const Checkpoint& base) {
  std::string digests;
  for (size_t i = 0; i < base.layout.size(); ++i) {
    std::string text = fmt::format("{} {}{} ({}) ", base.layout[i].name, base.dtypes[i] == mx::bfloat16 ? "b" : "",
                                   8 * mx::size_of(base.dtypes[i]), fmt::join(base.layout[i].dims, ","));
    append_sample(base.tensors[i], text);
    digests += to_hex(digest_of(text));
  }
  return to_hex(digest_of(digests));
}

Adapter load_adapter(const fs::path& directory, const Checkpoint& base) {
  if (!fs::is_directory(directory)) fail(ErrorKind::input, "{}: not a directory", directory.string());
  if (!fs::exists(directory / kConfig)) {
    fail(ErrorKind::input, "{}: no {} here: not an adapter's directory", directory.string(), kConfig);
  }
  Adapter adapter;
  adapter.config = read_adapter_config(directory / kConfig);
  adapter.shape = adapter_shape(adapter.config, base.shape, (directory / kConfig).string());
  adapter.warnings = adapter.shape.warnings;
  adapter.layout = tensor_shapes(adapter.shape);
  if (!fs::exists(directory / kTensors)) {
    const bool pickled = fs::exists(directory / "adapter_model.bin");
    fail(ErrorKind::input, "{}: no {} here{}", directory.string(), kTensors,
         pickled ? " (adapter_model.bin is not read: save it as safetensors)" : "");
  }

  const SafetensorsFile file(directory / kTensors);
  std::set<std::string> known;
  for (const TensorShape& tensor : adapter.layout) {
    const std::string name = kPrefix + tensor.name;
    known.insert(name);
    if (!file.tensors().contains(name)) {
      fail(ErrorKind::input, "{}: {} is missing, for which {} asks", file.path().string(), name, kConfig);
    }
    check_tensor(file, name, tensor.dims);
    adapter.tensors.push_back(load_finite(file, name));
  }
  std::set<std::string> copies;
  for (const AdaptedModule& module : adapter.shape.modules) {
    if (module.embedding || module.name == "lm_head") copies.insert(kPrefix + module.name + kBaseCopy);
  }
  for (const auto& [name, tensor] : file.tensors()) {
    if (known.contains(name)) continue;
    if (!copies.contains(name)) {
      fail(ErrorKind::input, "{}: {} belongs to no module that {} names", file.path().string(), name, kConfig);
    }
    load_base_copy(file, name, base, adapter);
  }
  if (const auto found = file.metadata().find(kBaseDigest); found != file.metadata().end()) {
    adapter.base_digest = found->second;
    if (!base.tensors.empty() && adapter.base_digest != digest_of_base(base)) {
      adapter.warnings.push_back(fmt::format(
          "{}: the adapter was trained on other weights than those of {}{}: what the two compute together is not what "
          "was trained. Use the base that it was trained on, as it was then",
          directory.string(), base.directory.string(),
          adapter.config.base.empty() ? "" : fmt::format(" (its base was at {})", adapter.config.base)));
    }
  }
  return adapter;
}

void save_adapter(const Adapter& adapter, const fs::path& directory) {
  std::vector<NamedTensor> tensors = adapter.base_copies;
  for (size_t i = 0; i < adapter.layout.size(); ++i) {
    tensors.push_back({kPrefix + adapter.layout[i].name, adapter.tensors[i], adapter.tensors[i].dtype()});
  }
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  make_directories(directory);
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
  if (!adapter.base_digest.empty()) metadata[kBaseDigest] = adapter.base_digest;
  write_safetensors(directory / kTensors, tensors, metadata);
  write_file(directory / kConfig, text_of(adapter.config));
}

Adapter new_adapter(const AdapterConfig& config, const Checkpoint& base, uint64_t seed) {
  Adapter adapter;
  adapter.config = config;
  adapter.base_digest = digest_of_base(base);
  adapter.shape = adapter_shape(config, base.shape, "the adapter");
  adapter.layout = tensor_shapes(adapter.shape);
  const Decoder decoder(base.shape, adapter.shape);
  Parameters all = base.tensors;
  for (const TensorShape& tensor : adapter.layout) {
    Random random(seed << 32 | crc32c(tensor.name.data(), tensor.name.size()));
    if (tensor.name.ends_with(".lora_A.weight")) {
      const double bound = 1.0 / std::sqrt(static_cast<double>(tensor.dims[1]));
      all.push_back(drawn(tensor, [&] { return bound * (2.0 * random.uniform() - 1.0); }));
    } else if (tensor.name.ends_with(".lora_embedding_B")) {
      all.push_back(drawn(tensor, [&] { return normal(random); }));
    } else {
      all.push_back(mx::zeros({tensor.dims.begin(), tensor.dims.end()}, mx::float32));
    }
  }
  for (const LinearIndex* at : decoder.adapted_layers()) {
    if (at->magnitude < 0) continue;
    mx::array& norms = all[static_cast<size_t>(at->magnitude)];
    norms = weight_norms(all, *at);
    norms.eval();
  }
  adapter.tensors.assign(all.begin() + static_cast<ptrdiff_t>(base.layout.size()), all.end());
  return adapter;
}

}  // namespace trunkline
