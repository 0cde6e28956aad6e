#include "comm/convert.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/convert.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "comm/halves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline {
namespace HWY_NAMESPACE {
namespace {

template <typename Format>
void widen_as(const uint16_t* in, float* out, size_t count) {
  const FloatTag tag;
  const size_t step = hn::Lanes(tag);
  size_t i = 0;
  for (; i + step <= count; i += step) hn::StoreU(Format::load(in + i), tag, out + i);
  if (i == count) return;
  uint16_t rest[hn::MaxLanes(FloatTag())] = {};
  float wide[hn::MaxLanes(FloatTag())];
  std::memcpy(rest, in + i, (count - i) * sizeof *in);
  hn::StoreU(Format::load(rest), tag, wide);
  std::memcpy(out + i, wide, (count - i) * sizeof *out);
}

template <typename Format>
void narrow_as(const float* in, uint16_t* out, size_t count) {
  const FloatTag tag;
  const size_t step = hn::Lanes(tag);
  size_t i = 0;
  for (; i + step <= count; i += step) Format::store(hn::LoadU(tag, in + i), out + i);
  if (i == count) return;
  float rest[hn::MaxLanes(FloatTag())] = {};
  uint16_t halves[hn::MaxLanes(FloatTag())];
  std::memcpy(rest, in + i, (count - i) * sizeof *in);
  Format::store(hn::LoadU(tag, rest), halves);
  std::memcpy(out + i, halves, (count - i) * sizeof *out);
}

void widen_here(bool brain, const std::byte* in, std::byte* out, size_t count) {
  const auto* const from = reinterpret_cast<const uint16_t*>(in);
  auto* const to = reinterpret_cast<float*>(out);
  brain ? widen_as<Brain>(from, to, count) : widen_as<Half>(from, to, count);
}

void narrow_here(bool brain, const std::byte* in, std::byte* out, size_t count) {
  const auto* const from = reinterpret_cast<const float*>(in);
  auto* const to = reinterpret_cast<uint16_t*>(out);
  brain ? narrow_as<Brain>(from, to, count) : narrow_as<Half>(from, to, count);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace trunkline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline {

HWY_EXPORT(widen_here);
HWY_EXPORT(narrow_here);

void widen(Dtype dtype, const std::byte* in, std::byte* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(widen_here)(dtype == Dtype::bf16, in, out, count);
}

void narrow(Dtype dtype, const std::byte* in, std::byte* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(narrow_here)(dtype == Dtype::bf16, in, out, count);
}

}  // namespace trunkline
#endif  // HWY_ONCE
