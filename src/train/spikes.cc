#include "train/spikes.h"

#include <cmath>

namespace trunkline {

SpikeWatch::SpikeWatch(double limit, int64_t window) : limit_(limit), window_(static_cast<size_t>(window)) {}

void SpikeWatch::push(double value) {
  values_.push_back(value);
  if (values_.size() > window_) values_.pop_front();
}

bool SpikeWatch::take(double value) {
  score_ = std::numeric_limits<double>::quiet_NaN();
  if (values_.size() == window_) {
    const auto count = static_cast<double>(window_);
    double mean = 0.0, variance = 0.0;
    for (const double one : values_) mean += one / count;
    for (const double one : values_) variance += (one - mean) * (one - mean) / count;
    if (variance > 0.0) score_ = (value - mean) / std::sqrt(variance);
  }
  push(value);
  return on() && score_ > limit_;
}

void SpikeWatch::restore(const std::vector<double>& values) {
  values_.clear();
  for (const double value : values) push(value);
}

}  // namespace trunkline
