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

  // What was measured since a mark was spent waiting, except in the verbs library.
  struct Mark {
    std::array<uint64_t, kActivities> totals{};
  };
  Mark mark() {
    Mark mark;
    if (!is_on()) return mark;
    settle();
    for (size_t i = 0; i < kActivities; ++i) mark.totals[i] = totals_[i].load(std::memory_order_relaxed);
    return mark;
  }
  void was_idle_since(const Mark& mark) {
    if (!is_on()) return;
    settle();
    uint64_t waited = 0;
    for (const Activity each : {Activity::protocol, Activity::copy, Activity::reduce, Activity::checksum}) {
      auto& total = totals_[static_cast<size_t>(each)];
      const uint64_t before = mark.totals[static_cast<size_t>(each)];
      waited += total.load(std::memory_order_relaxed) - before;
      total.store(before, std::memory_order_relaxed);
    }
    add(static_cast<uint8_t>(Activity::idle), waited);
  }

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
    if (is_on() && to != current_) settle();
    current_ = to;
  }

  // The time until now belongs to what is being done.
  void settle() {
    const auto now = Clock::now();
    if (current_ != kNothing && since_ != Clock::time_point{}) {
      add(current_, static_cast<uint64_t>(std::chrono::nanoseconds(now - since_).count()));
    }
    since_ = now;
  }

  void add(uint8_t activity, uint64_t nanoseconds) {
    auto& total = totals_[activity];
    total.store(total.load(std::memory_order_relaxed) + nanoseconds, std::memory_order_relaxed);
  }

  std::atomic<bool> on_{false};
  uint8_t current_ = kNothing;
  Clock::time_point since_;
  std::array<std::atomic<uint64_t>, kActivities> totals_{};
};

}  // namespace trunkline
