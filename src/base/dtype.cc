#include "trunkline/dtype.h"

#include <utility>

namespace trunkline {
namespace {

struct Names {
  std::string_view full, brief;
};

// In the order of Dtype's values.
constexpr Names kNames[] = {{"float32", "f32"}, {"float16", "f16"}, {"bfloat16", "bf16"}, {"int8", "i8"},
                            {"int16", "i16"},   {"int32", "i32"},   {"int64", "i64"},     {"uint8", "u8"},
                            {"uint16", "u16"},  {"uint32", "u32"},  {"uint64", "u64"}};

}  // namespace

std::string_view name_of(Dtype dtype) { return kNames[static_cast<size_t>(dtype)].full; }

std::optional<Dtype> dtype_from_name(std::string_view name) {
  for (Dtype dtype : kAllDtypes) {
    const Names& names = kNames[static_cast<size_t>(dtype)];
    if (name == names.full || name == names.brief) return dtype;
  }
  return std::nullopt;
}

}  // namespace trunkline
