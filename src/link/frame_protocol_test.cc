#include "link/frame_protocol.h"

#include <gtest/gtest.h>

#include "link/frame_simulator_test.h"

namespace trunkline {
namespace {

using simulator::Outcome;

TEST(FrameProtocol, RandomSchedulesEndInRightDataOrOneError) {
  uint64_t errors = 0, lost = 0, damaged = 0, overrun = 0, repeats = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    const Outcome outcome = simulator::simulate(simulator::random_schedule(seed));
    ASSERT_EQ(outcome.failure, "") << "seed " << seed << ": build/release/frame_simulator --seed " << seed;
    errors += outcome.error ? 1 : 0;
    lost += outcome.lost;
    damaged += outcome.damaged;
    overrun += outcome.overrun;
    repeats += outcome.repeats;
  }
  // Schedules of which nothing comes test nothing.
  EXPECT_GT(errors, 100u);
  EXPECT_GT(lost, 10'000u);
  EXPECT_GT(damaged, 1'000u);
  EXPECT_GT(repeats, 10'000u);
  EXPECT_GT(overrun, 0u);
}

}  // namespace
}  // namespace trunkline
