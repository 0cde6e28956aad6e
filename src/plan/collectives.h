// How collectives cut and carry messages: pure functions, for the runtime and for forecasts alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace trunkline {

// Stripes and blocks are cut in such units: the largest message that RDMA over Thunderbolt sends in one piece.
inline constexpr size_t kMessageUnit = 4096;
// A message below this size is one stripe.
inline constexpr size_t kSmallMessage = 32 * 1024;
// What a lane sends or receives at a time.
inline constexpr size_t kFrameBytes = 256 * 1024;
// What one message over a cable carries: large enough to fill it, small enough to stay in a core's cache.
inline constexpr size_t kCableFrameBytes = 64 * 1024;

// Part `index` of `count`, near equal, of `bytes` cut in units.
struct Range {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
};
inline Range part_of(size_t bytes, size_t count, size_t index, size_t unit = kMessageUnit) {
  const size_t units = (bytes + unit - 1) / unit;
  const size_t even = units / count;
  const size_t extra = units % count;  // the first parts have one unit more
  const auto edge = [&](size_t i) { return std::min(bytes, (even * i + std::min(i, extra)) * unit); };
  return {edge(index), edge(index + 1)};
}

// How many lanes share a message.
inline size_t lanes_for(size_t bytes, size_t lanes) {
  if (bytes < kSmallMessage) return 1;
  return std::min(lanes, (bytes + kMessageUnit - 1) / kMessageUnit);
}

// Lanes that a rank has when nobody says how many: a thread more pays off only where it has a core.
inline int default_lanes(int cores, int ranks_on_this_host) { return std::clamp(cores / ranks_on_this_host / 2, 1, 4); }

// The same over cables: one for each cable of the widest trunk, as far as there are cores.
inline constexpr int kMaxLanes = 10;  // a device has 10 queue pairs
inline int default_lanes(int cores, int ranks_on_this_host, int cables) {
  return std::clamp(std::min(cables, cores / ranks_on_this_host), 1, kMaxLanes);
}

// All-reduce: whether sending all to everyone is faster than reduce-scatter and all-gather. It takes one step instead
// of two, but every rank sends (ranks - 1) messages instead of less than two.
inline bool prefers_broadcast(int ranks, size_t bytes) { return bytes * static_cast<size_t>(ranks - 1) <= 256 * 1024; }

}  // namespace trunkline
