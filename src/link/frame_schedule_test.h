// What happens in one run of the frame simulator: cables and their faults, operations, how attentive the ranks are.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "link/frame_protocol.h"

namespace trunkline::simulator {

struct Cut {
  FrameTime from;
  FrameTime to;                 // max(): for good
  std::array<bool, 2> towards;  // messages to rank 0, to rank 1
};

struct Cable {
  double ns_per_byte;
  FrameTime delay, jitter;  // jitter never changes the order within a cable
  double loss, damage;
  size_t send_depth;
  std::array<size_t, 2> receives;  // by rank
  std::vector<Cut> cuts;
  bool stalls;  // while cut: sends wait, instead of being lost
};

// One operation, the same for both ranks.
struct Step {
  FrameOperation operation;
  std::array<std::array<uint64_t, kFramePhases>, 2> gives;  // bytes, by rank and phase
  bool dependent;  // results (phase 1) are offered when as many contributions (phase 0) were consumed
};

// How often a rank looks after its frames.
struct Attention {
  FrameTime poll_min, poll_max;
  double pause_chance;  // a look
  FrameTime pause_max;
  FrameTime consume_max;  // how long the layer above keeps a frame
};

// What differs in rank 1's view of a step, so that there must be an error.
enum class Clash { none, dtype, count, kind, order, size, generation };

struct Schedule {
  uint64_t seed = 0;
  size_t frame_bytes = 32;
  size_t slots = 16;  // of each rank, for each phase
  size_t credit_reserve = 8;
  bool checksum = true;
  FrameTime ask_floor = std::chrono::milliseconds(2);
  FrameTime deadline = std::chrono::seconds(10);
  std::vector<Cable> cables;
  std::vector<Step> steps;
  std::array<Attention, 2> attention;
  Clash clash = Clash::none;
  size_t clash_at = 0;             // step
  std::optional<FrameTime> death;  // of rank 1

  bool may_fail() const;  // a rank or all cables in one direction are gone for good: an error is right, and success too
};

// A schedule of everything that may happen, small.
Schedule random_schedule(uint64_t seed);
// One long stream each way over three cables.
Schedule long_schedule(uint64_t seed, uint64_t messages, double loss);

}  // namespace trunkline::simulator
