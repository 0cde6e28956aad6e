#include "comm/reduce.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "comm/halves-inl.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline {
namespace HWY_NAMESPACE {
namespace {

// How the elements of a dtype are loaded into the vectors that they are accumulated in, and stored again.
template <typename T>
struct Direct {
  using Element = T;
  using Tag = hn::ScalableTag<T>;
  static hn::Vec<Tag> load(const T* from) { return hn::LoadU(Tag(), from); }
  static void store(hn::Vec<Tag> v, T* to) { hn::StoreU(v, Tag(), to); }
};

template <Reduction reduction, typename V>
HWY_INLINE V combine(V a, V b) {
  if constexpr (reduction == Reduction::sum) {
    return hn::Add(a, b);
  } else if constexpr (std::is_floating_point_v<hn::TFromV<V>>) {
    const auto keep = reduction == Reduction::max ? hn::Ge(a, b) : hn::Le(a, b);
    return hn::IfThenElse(hn::Or(keep, hn::IsNaN(a)), a, b);
  } else {
    return reduction == Reduction::max ? hn::Max(a, b) : hn::Min(a, b);
  }
}

template <Reduction reduction, typename Format>
void reduce_as(std::span<const std::byte* const> inputs, std::byte* out_bytes, size_t count) {
  using T = typename Format::Element;
  const size_t step = hn::Lanes(typename Format::Tag());
  const auto input = [&](size_t r) { return reinterpret_cast<const T*>(inputs[r]); };
  T* const out = reinterpret_cast<T*>(out_bytes);

  size_t i = 0;
  if (inputs.size() == 2) {
    const T* const first = input(0);
    const T* const second = input(1);
    for (; i + step <= count; i += step) {
      Format::store(combine<reduction>(Format::load(first + i), Format::load(second + i)), out + i);
    }
  } else {
    for (; i + step <= count; i += step) {
      auto result = Format::load(input(0) + i);
      for (size_t r = 1; r < inputs.size(); ++r) result = combine<reduction>(result, Format::load(input(r) + i));
      Format::store(result, out + i);
    }
  }
  if (i == count) return;
  // The rest, by the same vectors.
  HWY_ALIGN T rest[hn::MaxLanes(typename Format::Tag())] = {};
  const size_t bytes = (count - i) * sizeof(T);
  const auto load_rest = [&](size_t r) {
    std::memcpy(rest, inputs[r] + i * sizeof(T), bytes);
    return Format::load(rest);
  };
  auto result = load_rest(0);
  for (size_t r = 1; r < inputs.size(); ++r) result = combine<reduction>(result, load_rest(r));
  Format::store(result, rest);
  std::memcpy(out_bytes + i * sizeof(T), rest, bytes);
}

template <Reduction reduction>
void reduce_with(Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out, size_t count) {
  switch (dtype) {
    case Dtype::f32: return reduce_as<reduction, Direct<float>>(inputs, out, count);
    case Dtype::f16: return reduce_as<reduction, Half>(inputs, out, count);
    case Dtype::bf16: return reduce_as<reduction, Brain>(inputs, out, count);
    case Dtype::i8: return reduce_as<reduction, Direct<int8_t>>(inputs, out, count);
    case Dtype::i16: return reduce_as<reduction, Direct<int16_t>>(inputs, out, count);
    case Dtype::i32: return reduce_as<reduction, Direct<int32_t>>(inputs, out, count);
    case Dtype::i64: return reduce_as<reduction, Direct<int64_t>>(inputs, out, count);
    case Dtype::u8: return reduce_as<reduction, Direct<uint8_t>>(inputs, out, count);
    case Dtype::u16: return reduce_as<reduction, Direct<uint16_t>>(inputs, out, count);
    case Dtype::u32: return reduce_as<reduction, Direct<uint32_t>>(inputs, out, count);
    case Dtype::u64: return reduce_as<reduction, Direct<uint64_t>>(inputs, out, count);
  }
}

void reduce_here(Reduction reduction, Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out,
                 size_t count) {
  switch (reduction) {
    case Reduction::sum: return reduce_with<Reduction::sum>(dtype, inputs, out, count);
    case Reduction::max: return reduce_with<Reduction::max>(dtype, inputs, out, count);
    case Reduction::min: return reduce_with<Reduction::min>(dtype, inputs, out, count);
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace trunkline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline {

HWY_EXPORT(reduce_here);

void reduce(Reduction reduction, Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out, size_t count,
            std::byte* copy, Stores stores) {
  constexpr size_t kTile = 8192;  // bytes; stays in the first cache between the reduction and the copy
  constexpr size_t kMostInputs = 64;
  std::array<std::byte, kTile> apart;
  const bool direct = copy == nullptr && stores == Stores::cached;
  if (direct || inputs.size() > kMostInputs) {
    HWY_DYNAMIC_DISPATCH(reduce_here)(reduction, dtype, inputs, out, count);
    if (copy != nullptr) std::memcpy(copy, out, count * size_of(dtype));
    return;
  }
  std::array<const std::byte*, kMostInputs> tile_inputs;
  const size_t bytes = count * size_of(dtype);
  for (size_t i = 0; i < bytes; i += kTile) {
    const size_t tile = std::min(kTile, bytes - i);
    for (size_t r = 0; r < inputs.size(); ++r) tile_inputs[r] = inputs[r] + i;
    std::byte* const made = copy != nullptr ? copy + i : apart.data();
    HWY_DYNAMIC_DISPATCH(reduce_here)
    (reduction, dtype, std::span(tile_inputs).first(inputs.size()), made, tile / size_of(dtype));
    copy_bytes(out + i, made, tile, stores);
  }
}

}  // namespace trunkline
#endif  // HWY_ONCE
