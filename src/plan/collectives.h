// How collectives cut and carry messages: pure functions, for the runtime and for forecasts alike.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "trunkline/algorithm.h"

namespace trunkline {

// Stripes and blocks are cut in such units: the largest message that RDMA over Thunderbolt sends in one piece.
inline constexpr size_t kMessageUnit = 4096;
// A message below this size is one stripe, unless another size is asked for.
inline constexpr size_t kSmallMessage = 32 * 1024;
// The same over TCP, where the system's part of the work makes one lane enough for longer (bench/tcp_peers).
inline constexpr size_t kSmallTcpMessage = 2 << 20;
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

// How many lanes share a message: two of `trunking_from` bytes, more of larger ones, so that no lane gets a stripe that
// takes less time than to wake it.
inline size_t lanes_for(size_t bytes, size_t lanes, size_t trunking_from = kSmallMessage) {
  if (bytes < trunking_from) return 1;
  const size_t stripe = std::max(kMessageUnit, trunking_from / 2);
  return std::clamp<size_t>(bytes / stripe, 1, lanes);
}

// Lanes that a rank has when nobody says how many: a thread more pays off only where it has a core.
inline int default_lanes(int cores, int ranks_on_this_host) { return std::clamp(cores / ranks_on_this_host / 2, 1, 4); }

// The same over cables: one for each cable of the widest trunk, and not less than four, since one thread can neither
// feed nor reduce what a cable carries; as far as there are cores (bench/sweep lanes).
inline constexpr int kMaxLanes = 10;  // a device has 10 queue pairs
inline int default_lanes(int cores, int ranks_on_this_host, int cables) {
  return std::clamp(std::min(std::max(cables, 4), cores / ranks_on_this_host), 1, kMaxLanes);
}

// What the choice of an algorithm reckons with. Guesses, not promises: they stand in a ratio that puts the border
// between broadcast and mesh where two ranks of one machine have it (256 KiB), and cables at the speed that Thunderbolt
// 5 is reported to have.
struct CollectiveCosts {
  double step_s = 15e-6;                 // from a rank's last byte to the next rank's going on
  double cable_s_per_byte = 0.11e-9;     // of one cable, in one direction
  double moved_s_per_byte = 0.1e-9;      // that a rank sends or receives, whatever it goes over
  double reduced_s_per_byte = 0.057e-9;  // of input to an addition
};

// About how long an all-reduce takes. `cables`: of each pair of ranks.
inline double all_reduce_seconds(Algorithm algorithm, size_t ranks, size_t bytes, size_t cables,
                                 const CollectiveCosts& costs = {}) {
  const double n = static_cast<double>(ranks), size = static_cast<double>(bytes);
  // Steps that follow each other; bytes that one trunk carries each way, that a rank sends, and that it adds up.
  double steps = 2, carried = 2 * size / n, sent = 2 * size * (n - 1) / n, added = size;
  if (algorithm == Algorithm::broadcast) {
    steps = 1, carried = size, sent = size * (n - 1), added = size * n;
  } else if (algorithm == Algorithm::ring) {
    // Half of the message in each direction.
    steps = 2 * (n - 1), carried = size * (n - 1) / n, added = 2 * size * (n - 1) / n;
  }
  return steps * costs.step_s + carried / static_cast<double>(cables) * costs.cable_s_per_byte +
         sent * costs.moved_s_per_byte + added * costs.reduced_s_per_byte;
}

// Which algorithm an all-reduce takes where nobody says. `complete`: every pair of ranks has a path; only a ring can do
// without. Between ranks that have, mesh and broadcast give the same bits, a ring others: so it is never chosen there.
inline Algorithm all_reduce_algorithm(size_t ranks, size_t bytes, size_t cables, bool complete) {
  if (!complete) return Algorithm::ring;
  const auto seconds = [&](Algorithm algorithm) { return all_reduce_seconds(algorithm, ranks, bytes, cables); };
  return seconds(Algorithm::broadcast) <= seconds(Algorithm::mesh) ? Algorithm::broadcast : Algorithm::mesh;
}

}  // namespace trunkline
