#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "base/json_reason.h"

namespace trunkline {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr uint64_t kLargestHeader = 100'000'000;  // what Hugging Face's reader takes

struct StoredDtype {
  const char* name;
  mx::Dtype dtype;
};

const StoredDtype kDtypes[] = {{"F64", mx::float64}, {"F32", mx::float32}, {"F16", mx::float16}, {"BF16", mx::bfloat16},
                               {"I64", mx::int64},   {"I32", mx::int32},   {"I16", mx::int16},   {"I8", mx::int8},
                               {"U64", mx::uint64},  {"U32", mx::uint32},  {"U16", mx::uint16},  {"U8", mx::uint8},
                               {"BOOL", mx::bool_}};

std::optional<mx::Dtype> dtype_of(const std::string& name) {
  for (const StoredDtype& entry : kDtypes) {
    if (name == entry.name) return entry.dtype;
  }
  return std::nullopt;
}

const char* stored_name(mx::Dtype dtype) {
  for (const StoredDtype& entry : kDtypes) {
    if (dtype == entry.dtype) return entry.name;
  }
  fail(ErrorKind::unsupported, "safetensors have no name for this dtype");
}

[[noreturn]] void damaged(const std::filesystem::path& path, const std::string& how) {
  fail(ErrorKind::input, "{}: damaged safetensors file: {}", path.string(), how);
}

json read_header(const InputFile& file) {
  uint64_t length = 0;
  if (file.size() < sizeof length) damaged(file.path(), fmt::format("only {} bytes", file.size()));
  file.read_at(0, &length, sizeof length);
  std::string beginning(std::min<uint64_t>(file.size(), 64), '\0');
  file.read_at(0, beginning.data(), beginning.size());
  require_content(file.path(), beginning);
  if (length > std::min(kLargestHeader, file.size() - sizeof length)) {
    damaged(file.path(), fmt::format("a header of {} bytes in a file of {}", length, file.size()));
  }
  std::string text(length, '\0');
  file.read_at(sizeof length, text.data(), length);
  try {
    json header = json::parse(text);
    if (!header.is_object()) damaged(file.path(), "the header is not a JSON object");
    return header;
  } catch (const json::exception& error) {
    damaged(file.path(), fmt::format("the header is not JSON: {}", json_reason(error.what())));
  }
}

// The tensor's entry in the header; its bytes are counted from the end of the header there.
StoredTensor read_entry(const std::filesystem::path& path, const std::string& name, const json& entry) {
  StoredTensor tensor;
  try {
    tensor.dtype = entry.at("dtype").get<std::string>();
    for (const json& dim : entry.at("shape")) {
      if (!dim.is_number_unsigned() || dim.get<uint64_t>() > std::numeric_limits<int32_t>::max()) {
        damaged(path, fmt::format("{}: shape {}", name, entry.at("shape").dump()));
      }
      tensor.dims.push_back(dim.get<int64_t>());
    }
    const json& offsets = entry.at("data_offsets");
    if (offsets.size() != 2 || !offsets.at(0).is_number_unsigned() || !offsets.at(1).is_number_unsigned()) {
      damaged(path, fmt::format("{}: data_offsets {}", name, offsets.dump()));
    }
    tensor.begin = offsets.at(0).get<uint64_t>();
    tensor.end = offsets.at(1).get<uint64_t>();
  } catch (const json::exception& error) {
    damaged(path, fmt::format("{}: {}", name, json_reason(error.what())));
  }
  if (tensor.end < tensor.begin) damaged(path, fmt::format("{}: it ends before it begins", name));
  if (const std::optional<mx::Dtype> dtype = dtype_of(tensor.dtype)) {
    double bytes = mx::size_of(*dtype);
    for (int64_t dim : tensor.dims) bytes *= static_cast<double>(dim);
    if (bytes != static_cast<double>(tensor.end - tensor.begin)) {
      damaged(path, fmt::format("{}: {} bytes for shape [{}] of {}", name, tensor.end - tensor.begin,
                                fmt::join(tensor.dims, ", "), tensor.dtype));
    }
  }
  return tensor;
}

// The tensors' bytes must fill the rest of the file without gap or overlap.
void check_coverage(const InputFile& file, uint64_t data_begin, const std::map<std::string, StoredTensor>& tensors) {
  std::vector<std::pair<const StoredTensor*, const std::string*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&tensor, &name);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->begin, a.first->end) < std::tie(b.first->begin, b.first->end);
  });
  uint64_t at = data_begin;
  for (const auto& [tensor, name] : order) {
    if (tensor->begin != at) damaged(file.path(), fmt::format("{}: not where the tensor before it ends", *name));
    at = tensor->end;
  }
  if (at > file.size()) {
    damaged(file.path(), fmt::format("truncated: its tensors take {} bytes, it has {}", at, file.size()));
  }
  if (at < file.size()) {
    damaged(file.path(), fmt::format("{} bytes after the last tensor", file.size() - at));
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : file_(path) {
  const json header = read_header(file_);
  uint64_t length = 0;
  file_.read_at(0, &length, sizeof length);
  const uint64_t data_begin = sizeof length + length;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      if (entry.is_null()) continue;  // as MLX writes it where there is none
      if (!entry.is_object()) damaged(path, "__metadata__ is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) damaged(path, fmt::format("__metadata__.{} is not a string", key));
        metadata_[key] = value.get<std::string>();
      }
      continue;
    }
    StoredTensor tensor = read_entry(path, name, entry);
    if (tensor.end > std::numeric_limits<uint64_t>::max() - data_begin) damaged(path, name + ": offsets");
    tensor.begin += data_begin;
    tensor.end += data_begin;
    tensors_.emplace(name, std::move(tensor));
  }
  check_coverage(file_, data_begin, tensors_);
}

mx::array SafetensorsFile::load(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(ErrorKind::input, "{}: no tensor {}", path().string(), name);
  const StoredTensor& tensor = found->second;
  const std::optional<mx::Dtype> dtype = dtype_of(tensor.dtype);
  if (!dtype) {
    fail(ErrorKind::unsupported, "{}: {}: dtype {} is not supported", path().string(), name, tensor.dtype);
  }
  mx::Shape shape;
  for (int64_t dim : tensor.dims) shape.push_back(static_cast<int32_t>(dim));
  const size_t bytes = tensor.end - tensor.begin;
  if (bytes == 0) return mx::zeros(shape, *dtype);
  mx::allocator::Data data = mx::allocator::malloc(bytes);
  file_.read_at(tensor.begin, data.buffer().raw_ptr(), bytes);
  return mx::array(std::move(data), shape, *dtype);
}

mx::array converted(const std::string& name, const mx::array& value, mx::Dtype dtype) {
  if (value.dtype() == dtype) return value;
  mx::array result = mx::astype(value, dtype);
  if (!mx::issubdtype(dtype, mx::floating)) return result;
  const auto infinite = mx::logical_and(mx::isinf(result), mx::logical_not(mx::isinf(value)));
  if (const auto count = mx::sum(infinite).item<int>(); count > 0) {
    fail(ErrorKind::numeric, "{}: {} of its {} numbers are too large for {}: give --save-dtype bfloat16 or float32",
         name, count, value.size(), dtype == mx::float16 ? "float16" : "its dtype");
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const NamedTensor* a, const NamedTensor* b) {
    return mx::size_of(a->dtype) > mx::size_of(b->dtype);
  });

  nlohmann::ordered_json header;
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const NamedTensor* tensor : order) {
    const uint64_t end = offset + tensor->value.size() * mx::size_of(tensor->dtype);
    const mx::Shape& shape = tensor->value.shape();
    header[tensor->name] = {{"dtype", stored_name(tensor->dtype)},
                            {"shape", std::vector<int64_t>(shape.begin(), shape.end())},
                            {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  const uint64_t length = text.size();

  OutputFile file(path);
  file.append({reinterpret_cast<const char*>(&length), sizeof length});
  file.append(text);
  for (const NamedTensor* tensor : order) {
    mx::array value = mx::contiguous(converted(tensor->name, tensor->value, tensor->dtype));
    value.eval();
    file.append({value.data<char>(), value.nbytes()});
  }
  file.commit();
}

}  // namespace trunkline
