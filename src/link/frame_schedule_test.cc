#include "link/frame_schedule_test.h"

#include <algorithm>

#include "base/random.h"

namespace trunkline::simulator {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

bool Schedule::may_fail() const {
  if (death) return true;
  for (size_t to = 0; to < 2; ++to) {
    const bool gone = std::all_of(cables.begin(), cables.end(), [&](const Cable& cable) {
      return std::any_of(cable.cuts.begin(), cable.cuts.end(),
                         [&](const Cut& cut) { return cut.to == FrameTime::max() && cut.towards[to]; });
    });
    if (gone) return true;
  }
  return false;
}

Schedule random_schedule(uint64_t seed) {
  Random random(seed);
  const auto chance = [&](double p) { return random.uniform() < p; };
  const auto between = [&](uint64_t least, uint64_t most) { return least + random.below(most - least + 1); };
  Schedule schedule;
  schedule.seed = seed;
  schedule.frame_bytes = between(1, 48);
  schedule.slots = between(2, 40);
  schedule.credit_reserve = between(3, 8);
  schedule.checksum = !chance(0.1);
  schedule.ask_floor = microseconds(between(200, 4000));

  const size_t cables = between(1, 6);
  const double loss = chance(0.4) ? 0 : chance(0.7) ? 0.02 : random.uniform() * 0.3;
  const double damage = !schedule.checksum || chance(0.5) ? 0 : random.uniform() * 0.1;
  const bool harsh_cuts = chance(0.05);
  for (size_t i = 0; i < cables; ++i) {
    Cable cable{};
    cable.ns_per_byte = chance(0.3) ? 0 : static_cast<double>(between(1, 100)) * (chance(0.2) ? 10 : 1);
    cable.delay = microseconds(chance(0.9) ? between(0, 50) : between(0, 20'000));
    cable.jitter = microseconds(chance(0.7) ? 0 : between(0, 500));
    cable.loss = chance(0.2) ? 0 : loss;
    cable.damage = damage;
    cable.send_depth = between(1, 40);
    for (size_t& each : cable.receives) each = schedule.credit_reserve + between(3, chance(0.3) ? 5 : 50);
    cable.stalls = chance(0.1);
    for (uint64_t n = chance(0.25) ? between(1, 3) : 0; n > 0; --n) {
      const FrameTime from = microseconds(between(0, 3000));
      const bool for_good = harsh_cuts || (chance(0.3) && i > 0 && !cable.stalls);
      const uint64_t ways = between(1, 3);
      const FrameTime to = for_good && !cable.stalls ? FrameTime::max()
                                                     : from + microseconds(between(1, chance(0.1) ? 900'000 : 20'000));
      cable.cuts.push_back({from, to, {(ways & 1) != 0, (ways & 2) != 0}});
    }
    schedule.cables.push_back(cable);
  }

  std::array<uint64_t, 2> numbers{between(0, 5), between(0, 5)};
  for (uint64_t n = between(1, 6); n > 0; --n) {
    Step step{};
    FrameOperation& operation = step.operation;
    operation.pairwise = chance(0.3);
    operation.number = numbers[operation.pairwise ? 1 : 0]++;
    operation.count = between(0, 1000);
    operation.kind = static_cast<uint8_t>(between(0, 6));
    operation.dtype = static_cast<uint8_t>(between(0, 10));
    const uint64_t most = chance(0.02) ? 1500 : chance(0.3) ? 120 : 20;
    const auto bytes = [&] { return between(0, most) * schedule.frame_bytes + between(0, schedule.frame_bytes - 1); };
    switch (random.below(5)) {
      case 0: break;  // a barrier
      case 1: step.gives[random.below(2)][1] = bytes(); break;
      case 2:  // a broadcast all-reduce
        step.gives[0][0] = step.gives[1][0] = bytes();
        break;
      case 3:  // reduce-scatter and all-gather
        step.dependent = true;
        for (size_t rank = 0; rank < 2; ++rank) step.gives[rank][0] = step.gives[1 - rank][1] = bytes();
        break;
      default:
        for (auto& rank : step.gives) {
          for (uint64_t& each : rank) each = chance(0.5) ? bytes() : 0;
        }
    }
    schedule.steps.push_back(step);
  }

  for (Attention& each : schedule.attention) {
    each.poll_min = microseconds(between(0, 5));
    each.poll_max = each.poll_min + microseconds(chance(0.8) ? between(1, 30) : between(1, 500));
    each.pause_chance = chance(0.6) ? 0 : random.uniform() * 0.02;
    each.pause_max = chance(0.05) ? FrameTime(seconds(4)) : FrameTime(milliseconds(between(1, 30)));
    each.consume_max = microseconds(chance(0.6) ? 0 : between(1, chance(0.1) ? 5000 : 200));
  }
  if (chance(0.08)) {
    schedule.clash = static_cast<Clash>(between(1, 6));
    schedule.clash_at = random.below(schedule.steps.size());
  } else if (chance(0.02)) {
    schedule.death = microseconds(between(0, 2000));
  }
  return schedule;
}

Schedule long_schedule(uint64_t seed, uint64_t messages, double loss) {
  Schedule schedule;
  schedule.seed = seed;
  schedule.slots = 256;
  for (size_t i = 0; i < 3; ++i) {
    schedule.cables.push_back({10.0, microseconds(5), FrameTime(0), loss, loss / 10, 32, {63, 63}, {}, false});
  }
  constexpr uint64_t kPerStep = 10'000;  // messages, both ways together
  for (uint64_t n = 0; n < (messages + kPerStep - 1) / kPerStep; ++n) {
    Step step{};
    step.operation.number = n;
    step.operation.count = 1;
    step.dependent = n % 2 == 0;
    for (auto& rank : step.gives) rank[0] = rank[1] = kPerStep / 4 * schedule.frame_bytes;
    schedule.steps.push_back(step);
  }
  for (Attention& each : schedule.attention) each = {microseconds(1), microseconds(10), 0, FrameTime(0), FrameTime(0)};
  return schedule;
}

}  // namespace trunkline::simulator
