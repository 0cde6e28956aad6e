#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "comm/reduce.h"

namespace trunkline {
namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

float widen(float x) { return x; }

float widen(Brain x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

float widen(Half x) {
  const int exponent = (x.bits >> 10) & 31;
  const int mantissa = x.bits & 1023;
  const float sign = (x.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return std::bit_cast<float>((uint32_t{x.bits} & 0x8000u) << 16 | 0x7f800000u |
                                static_cast<uint32_t>(mantissa) << 13);
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
}

void narrow(float x, float& out) { out = x; }

void narrow(float x, Brain& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) {
    out.bits = static_cast<uint16_t>(bits >> 16 | 0x40);  // quiet, never infinity
  } else {
    out.bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

void narrow(float x, Half& out) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float size = std::fabs(x);
  if (std::isnan(x)) {
    out.bits = static_cast<uint16_t>(sign | 0x7e00 | (bits >> 13 & 0x3ff));
  } else if (size >= 65520.0f) {
    out.bits = sign | 0x7c00;  // rounds beyond the largest
  } else if (size < 0x1p-14f) {
    out.bits = static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(size * 0x1p24f)));  // subnormal
  } else {
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1) - (112u << 23);
    out.bits = static_cast<uint16_t>(sign | rounded >> 13);
  }
}

template <Reduction reduction, typename T>
T combine(T a, T b) {
  if constexpr (reduction == Reduction::sum) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  } else {
    bool keep = reduction == Reduction::max ? a >= b : a <= b;
    if constexpr (std::is_floating_point_v<T>) keep = keep || std::isnan(a);
    return keep ? a : b;
  }
}

template <typename T>
T load(const std::byte* from, size_t i) {
  T value;
  std::memcpy(&value, from + i * sizeof(T), sizeof(T));
  return value;
}

template <Reduction reduction, typename T>
void reduce_as(std::span<const std::byte* const> inputs, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T result;
    if constexpr (std::is_integral_v<T>) {
      result = load<T>(inputs[0], i);
      for (const std::byte* input : inputs.subspan(1)) result = combine<reduction>(result, load<T>(input, i));
    } else {
      float sum = widen(load<T>(inputs[0], i));
      for (const std::byte* input : inputs.subspan(1)) sum = combine<reduction>(sum, widen(load<T>(input, i)));
      narrow(sum, result);
    }
    std::memcpy(out + i * sizeof(T), &result, sizeof(T));
  }
}

template <Reduction reduction>
void reduce_with(Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out, size_t count) {
  switch (dtype) {
    case Dtype::f32: return reduce_as<reduction, float>(inputs, out, count);
    case Dtype::f16: return reduce_as<reduction, Half>(inputs, out, count);
    case Dtype::bf16: return reduce_as<reduction, Brain>(inputs, out, count);
    case Dtype::i8: return reduce_as<reduction, int8_t>(inputs, out, count);
    case Dtype::i16: return reduce_as<reduction, int16_t>(inputs, out, count);
    case Dtype::i32: return reduce_as<reduction, int32_t>(inputs, out, count);
    case Dtype::i64: return reduce_as<reduction, int64_t>(inputs, out, count);
    case Dtype::u8: return reduce_as<reduction, uint8_t>(inputs, out, count);
    case Dtype::u16: return reduce_as<reduction, uint16_t>(inputs, out, count);
    case Dtype::u32: return reduce_as<reduction, uint32_t>(inputs, out, count);
    case Dtype::u64: return reduce_as<reduction, uint64_t>(inputs, out, count);
  }
}

}  // namespace

void reduce_plain(Reduction reduction, Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out,
                  size_t count) {
  switch (reduction) {
    case Reduction::sum: return reduce_with<Reduction::sum>(dtype, inputs, out, count);
    case Reduction::max: return reduce_with<Reduction::max>(dtype, inputs, out, count);
    case Reduction::min: return reduce_with<Reduction::min>(dtype, inputs, out, count);
  }
}

}  // namespace trunkline
