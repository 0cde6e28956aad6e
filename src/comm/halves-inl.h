// float16 and bfloat16 as vectors of f32, for each of Highway's targets: included once a target, so not guarded by
// #pragma once.
#if defined(TRUNKLINE_COMM_HALVES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRUNKLINE_COMM_HALVES_INL_H_
#undef TRUNKLINE_COMM_HALVES_INL_H_
#else
#define TRUNKLINE_COMM_HALVES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace trunkline {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

struct Brain {
  using Element = uint16_t;
  using Tag = FloatTag;
  using Words = hn::RebindToUnsigned<FloatTag>;
  using Halves = hn::Rebind<uint16_t, FloatTag>;

  static HWY_INLINE Floats load(const uint16_t* from) {
    return hn::BitCast(Tag(), hn::ShiftLeft<16>(hn::PromoteTo(Words(), hn::LoadU(Halves(), from))));
  }
  static HWY_INLINE void store(Floats v, uint16_t* to) {
    const Words words;
    const auto bits = hn::BitCast(words, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1u));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fffu)));
    const auto quiet = hn::Or(bits, hn::Set(words, 0x400000u));
    const auto is_nan = hn::RebindMask(words, hn::IsNaN(v));
    const auto result = hn::ShiftRight<16>(hn::IfThenElse(is_nan, quiet, rounded));
    hn::StoreU(hn::TruncateTo(Halves(), result), Halves(), to);
  }
};

// By integer arithmetic alone, so that it is the same on every target. Subnormals are made and read with the help of
// f32 additions and subtractions, which round to nearest, ties to even.
struct Half {
  using Element = uint16_t;
  using Tag = FloatTag;
  using Words = hn::RebindToUnsigned<FloatTag>;
  using Halves = hn::Rebind<uint16_t, FloatTag>;

  static HWY_INLINE Floats load(const uint16_t* from) {
    const Words words;
    const auto bits = hn::PromoteTo(words, hn::LoadU(Halves(), from));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(words, 0x8000u)));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(words, 0x7fffu)));
    const hn::RebindToSigned<Words> ints;
    const auto size = hn::BitCast(ints, magnitude);
    const auto special = hn::Gt(size, hn::Set(ints, 0x0f7fffff));
    // Infinities and NaNs keep the greatest exponent; numbers get the other bias; subnormals are normalized by a
    // subtraction of what they were added to.
    const auto rebiased = hn::Add(magnitude, hn::Set(words, 112u << 23));
    const auto huge = hn::Add(rebiased, hn::Set(words, 112u << 23));
    const auto tiny = hn::BitCast(
        words, hn::Sub(hn::BitCast(Tag(), hn::Add(magnitude, hn::Set(words, 113u << 23))), hn::Set(Tag(), 0x1p-14f)));
    const auto subnormal = hn::Lt(size, hn::Set(ints, 0x00800000));
    auto result = hn::IfThenElse(hn::RebindMask(words, special), huge, rebiased);
    result = hn::IfThenElse(hn::RebindMask(words, subnormal), tiny, result);
    return hn::BitCast(Tag(), hn::Or(result, sign));
  }
  static HWY_INLINE void store(Floats v, uint16_t* to) {
    const Words words;
    const hn::RebindToSigned<Words> ints;
    const auto bits = hn::BitCast(words, v);
    const auto sign = hn::ShiftRight<16>(hn::And(bits, hn::Set(words, 0x80000000u)));
    const auto magnitude = hn::And(bits, hn::Set(words, 0x7fffffffu));
    const auto size = hn::BitCast(ints, magnitude);
    const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(words, 1u));
    const auto normal = hn::ShiftRight<13>(
        hn::Sub(hn::Add(magnitude, hn::Add(odd, hn::Set(words, 0xfffu))), hn::Set(words, 112u << 23)));
    // 0.5 has the weight of its last bit at 2^-24, the smallest subnormal.
    const auto tiny = hn::Sub(hn::BitCast(words, hn::Add(hn::BitCast(Tag(), magnitude), hn::Set(Tag(), 0.5f))),
                              hn::Set(words, 126u << 23));
    const auto nan = hn::Or(hn::And(hn::ShiftRight<13>(bits), hn::Set(words, 0x3ffu)), hn::Set(words, 0x7e00u));
    auto result = hn::IfThenElse(hn::RebindMask(words, hn::Lt(size, hn::Set(ints, 113 << 23))), tiny, normal);
    result =
        hn::IfThenElse(hn::RebindMask(words, hn::Gt(size, hn::Set(ints, 0x477fefff))), hn::Set(words, 0x7c00u), result);
    result = hn::IfThenElse(hn::RebindMask(words, hn::Gt(size, hn::Set(ints, 0x7f800000))), nan, result);
    hn::StoreU(hn::TruncateTo(Halves(), hn::Or(result, sign)), Halves(), to);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace trunkline
HWY_AFTER_NAMESPACE();

#endif
