// Element types of messages and tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trunkline {

// The values travel between ranks: never renumber.
enum class Dtype : uint8_t {
  f32 = 0,
  f16 = 1,
  bf16 = 2,
  i8 = 3,
  i16 = 4,
  i32 = 5,
  i64 = 6,
  u8 = 7,
  u16 = 8,
  u32 = 9,
  u64 = 10
};

inline constexpr Dtype kAllDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16, Dtype::i8,  Dtype::i16, Dtype::i32,
                                       Dtype::i64, Dtype::u8,  Dtype::u16,  Dtype::u32, Dtype::u64};

constexpr size_t size_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::i8:
    case Dtype::u8: return 1;
    case Dtype::f16:
    case Dtype::bf16:
    case Dtype::i16:
    case Dtype::u16: return 2;
    case Dtype::f32:
    case Dtype::i32:
    case Dtype::u32: return 4;
    case Dtype::i64:
    case Dtype::u64: return 8;
  }
  return 0;
}

// "float32", "bfloat16", "int8", ...
std::string_view name_of(Dtype dtype);

// Reads those names and the short ones (f32, f16, bf16, i8, ..., u64); none for anything else.
std::optional<Dtype> dtype_from_name(std::string_view name);

}  // namespace trunkline
