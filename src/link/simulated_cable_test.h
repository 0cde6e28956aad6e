// A cable of the frame simulator.
#pragma once

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/random.h"
#include "link/frame_schedule_test.h"

namespace trunkline::simulator {

inline constexpr FrameTime kNever = FrameTime::max();

struct Message {
  FrameTime end, arrival;
  uint64_t place;
  const std::byte* slot;  // until it is read
  size_t size;
  std::vector<std::byte> bytes;  // after that
  bool lost, damaged;
  bool reckoned;  // its sender reckoned with all that was before it: it must find a receive
};

// One direction of a cable, with the queue pairs at its ends.
class Way {
 public:
  Way(const Cable& cable, size_t to, uint64_t seed) : cable_(cable), to_(to), random_(seed) {}

  void post(FrameTime now, Message message) {
    FrameTime start = std::max(now, free_);
    bool cut = false;
    for (const Cut& each : cable_.cuts) {
      if (!each.towards[to_]) continue;
      if (cable_.stalls && start >= each.from && start < each.to) start = each.to;
    }
    const FrameTime end =
        start + FrameTime(static_cast<int64_t>(cable_.ns_per_byte * static_cast<double>(message.size)));
    const auto jitter = static_cast<uint64_t>(cable_.jitter.count());
    const FrameTime late(static_cast<int64_t>(jitter == 0 ? 0 : random_.below(jitter)));
    const FrameTime arrival = std::max(arrival_, end + cable_.delay + late);
    for (const Cut& each : cable_.cuts) cut = cut || (each.towards[to_] && start < each.to && arrival >= each.from);
    free_ = end;
    message.end = end;
    message.lost = random_.uniform() < cable_.loss || (cut && !cable_.stalls);
    message.damaged = random_.uniform() < cable_.damage;
    message.arrival = arrival;
    if (!message.lost) arrival_ = arrival;
    sending_.push_back(std::move(message));
  }

  // Reads what has left its slot by now.
  void move(FrameTime now) {
    while (!sending_.empty() && sending_.front().end <= now) {
      Message& message = sending_.front();
      ++done_;
      if (!message.lost) {
        if (message.slot != nullptr) message.bytes.assign(message.slot, message.slot + message.size);
        if (message.damaged) damage(message.bytes);
        flying_.push_back(std::move(message));
      }
      sending_.pop_front();
    }
  }

  size_t take_completions() { return std::exchange(done_, 0); }
  FrameTime next_completion() const { return sending_.empty() ? kNever : sending_.front().end; }
  FrameTime next_arrival() const { return flying_.empty() ? kNever : flying_.front().arrival; }
  bool has_completions() const { return done_ > 0; }
  std::deque<Message>& flying() { return flying_; }

  // Whether the sender still reckons with everything that is on its way.
  bool all_unresolved(const FrameLink& link) const {
    const auto unresolved = [&](const Message& each) { return link.is_unresolved(each.place); };
    return std::all_of(flying_.begin(), flying_.end(), unresolved) &&
           std::all_of(sending_.begin(), sending_.end(), unresolved);
  }

 private:
  void damage(std::vector<std::byte>& bytes) {
    const size_t at = random_.below(bytes.size());
    const size_t count = 1 + random_.below(8);
    for (size_t i = at; i < std::min(bytes.size(), at + count); ++i) {
      bytes[i] ^= static_cast<std::byte>(1 + random_.below(255));
    }
  }

  const Cable& cable_;
  const size_t to_;
  Random random_;
  FrameTime free_{0}, arrival_{0};
  std::deque<Message> sending_, flying_;
  size_t done_ = 0;
};

}  // namespace trunkline::simulator
