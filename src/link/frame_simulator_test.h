// A seeded simulation of two ranks that give each other streams of frames over cables that lose, damage, delay and are
// cut: two FrameProtocols with drivers, a layer above and cables, on a virtual clock.
#pragma once

#include <cstdint>
#include <string>

#include "link/frame_schedule_test.h"

namespace trunkline::simulator {

struct Outcome {
  std::string failure;  // what the protocol did wrong; empty: right data everywhere, or an error that is due
  bool error = false;   // it ended with an error
  uint64_t messages = 0, lost = 0, damaged = 0, overrun = 0, repeats = 0, duplicates = 0, credits = 0;
  FrameTime took{0};  // virtual
};

Outcome simulate(const Schedule& schedule);

}  // namespace trunkline::simulator
