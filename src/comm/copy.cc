#include "comm/copy.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/copy.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"

HWY_BEFORE_NAMESPACE();
namespace trunkline {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

void copy_streamed_here(std::byte* to_bytes, const std::byte* from_bytes, size_t bytes) {
  const hn::ScalableTag<uint8_t> tag;
  const size_t step = hn::Lanes(tag);
  auto* to = reinterpret_cast<uint8_t*>(to_bytes);
  const auto* from = reinterpret_cast<const uint8_t*>(from_bytes);
  // Streamed stores must be aligned.
  const size_t head = std::min(bytes, (step - reinterpret_cast<uintptr_t>(to) % step) % step);
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + 4 * step <= bytes; i += 4 * step) {
    const auto a = hn::LoadU(tag, from + i);
    const auto b = hn::LoadU(tag, from + i + step);
    const auto c = hn::LoadU(tag, from + i + 2 * step);
    const auto d = hn::LoadU(tag, from + i + 3 * step);
    hn::Stream(a, tag, to + i);
    hn::Stream(b, tag, to + i + step);
    hn::Stream(c, tag, to + i + 2 * step);
    hn::Stream(d, tag, to + i + 3 * step);
  }
  for (; i + step <= bytes; i += step) hn::Stream(hn::LoadU(tag, from + i), tag, to + i);
  std::memcpy(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace trunkline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline {

HWY_EXPORT(copy_streamed_here);

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores) {
  if (bytes == 0) return;
  if (stores == Stores::cached) {
    std::memcpy(to, from, bytes);
  } else {
    HWY_DYNAMIC_DISPATCH(copy_streamed_here)(to, from, bytes);
  }
}

uint32_t copy_with_checksum(std::byte* to, const std::byte* from, size_t bytes, uint32_t seed) {
  constexpr size_t kTile = 8192;  // stays in the first cache between the two passes
  for (size_t i = 0; i < bytes; i += kTile) {
    const size_t tile = std::min(kTile, bytes - i);
    std::memcpy(to + i, from + i, tile);
    seed = crc32c(to + i, tile, seed);
  }
  return seed;
}

}  // namespace trunkline
#endif  // HWY_ONCE
