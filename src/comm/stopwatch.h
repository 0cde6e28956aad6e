// Stopwatch: where a lane's time goes, by what it is doing. Off, it costs a test; on, two readings of the clock for
// each change. One thread at a time uses it; another may read the totals.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace trunkline {

enum class Activity : uint8_t { protocol, verbs, copy, reduce, checksum, idle };
inline constexpr size_t kActivities = 6;

class Stopwatch {
 public:
  // Time belongs to the innermost Span that is open on this thread; outside any, to nothing.
  class Span {
   public:
    Span(Stopwatch& watch, Activity activity) : watch_(watch), before_(watch.current_) { watch.turn(activity); }
    ~Span() { watch_.turn(before_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Stopwatch& watch_;
    const uint8_t before_;
  };

  Span in(Activity activity) { return Span(*this, activity); }

  void turn_on() { on_.store(true, std::memory_order_relaxed); }
  bool is_on() const { return on_.load(std::memory_order_relaxed); }
  // Nanoseconds so far.
  uint64_t total(Activity activity) const {
    return totals_[static_cast<size_t>(activity)].load(std::memory_order_relaxed);
  }

 private:
  static constexpr uint8_t kNothing = kActivities;

  void turn(Activity activity) { turn(static_cast<uint8_t>(activity)); }
  void turn(uint8_t to) {
    const uint8_t from = current_;
    current_ = to;
    if (!is_on() || from == to) return;
    const auto now = Clock::now();
    if (from != kNothing && since_ != Clock::time_point{}) {
      auto& total = totals_[from];
      total.store(total.load(std::memory_order_relaxed) + static_cast<uint64_t>((now - since_).count()),
                  std::memory_order_relaxed);
    }
    since_ = now;
  }

  std::atomic<bool> on_{false};
  uint8_t current_ = kNothing;
  Clock::time_point since_{};
  std::array<std::atomic<uint64_t>, kActivities> totals_{};
};

}  // namespace trunkline
