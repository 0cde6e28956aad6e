// Time as deadlines: every wait has one.
#pragma once

#include <algorithm>
#include <chrono>

namespace trunkline {

using Clock = std::chrono::steady_clock;

class Deadline {
 public:
  static Deadline after(Clock::duration duration) { return Deadline(Clock::now() + duration); }

  bool expired() const { return Clock::now() >= at_; }
  Clock::duration left() const { return std::max(Clock::duration::zero(), at_ - Clock::now()); }
  // For poll(2): never negative, rounded up so that a wait does not end just before the deadline.
  int left_ms() const {
    return static_cast<int>(std::min<int64_t>(std::chrono::ceil<std::chrono::milliseconds>(left()).count(), 1 << 30));
  }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace trunkline
