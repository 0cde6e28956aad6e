// Spikes: a step's value that lies far above those of the steps before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

namespace trunkline {

class SpikeWatch {
 public:
  // A value more than `limit` standard deviations above the mean of the `window` before it is a spike; limit 0: none
  // is.
  SpikeWatch(double limit, int64_t window);

  bool on() const { return limit_ > 0.0; }
  // Takes the next value, spike or not, so that a level that stays is soon no spike any more. Returns whether it is.
  bool take(double value);
  // The newest value's distance from the mean in standard deviations. NaN where the window was not full before it, or
  // all in it the same.
  double score() const { return score_; }

  // The last `window` values, oldest first: what a snapshot keeps.
  std::vector<double> values() const { return {values_.begin(), values_.end()}; }
  void restore(const std::vector<double>& values);

 private:
  void push(double value);

  double limit_;
  size_t window_;
  std::deque<double> values_;
  double score_ = std::numeric_limits<double>::quiet_NaN();
};

}  // namespace trunkline
