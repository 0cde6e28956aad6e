#include "train/clip.h"

#include <algorithm>
#include <cmath>

#include "bridge/arrays.h"

namespace trunkline {
namespace {

// By the largest entry, so that squares of large numbers do not overflow f32.
double squared_norm_on_device(const mx::array& gradient) {
  const mx::array x = mx::astype(gradient, mx::float32), largest = mx::max(mx::abs(x));
  mx::array squares = mx::sum(mx::square(mx::divide(x, mx::maximum(largest, mx::array(1e-30f))))), top = largest;
  mx::eval(squares, top);
  const double scale = top.item<float>();
  if (!std::isfinite(scale)) return scale;
  return std::max(scale, 1e-30) * std::max(scale, 1e-30) * squares.item<float>();
}

}  // namespace

double squared_norm(const mx::array& gradient) {
  if (mx::default_device() != mx::Device::cpu) return squared_norm_on_device(gradient);
  const mx::array x = in_row_order(gradient.dtype() == mx::float32 ? gradient : mx::astype(gradient, mx::float32));
  const float* values = x.data<float>();
  constexpr size_t kLanes = 8;  // independent sums, so that the compiler can keep them in vector registers
  double sums[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = values[i + lane];
      sums[lane] += value * value;
    }
  }
  double total = 0.0;
  for (; i < x.size(); ++i) total += static_cast<double>(values[i]) * values[i];
  for (const double sum : sums) total += sum;
  return total;
}

double global_norm(const Parameters& gradients) {
  double total = 0.0;
  for (const mx::array& gradient : gradients) total += squared_norm(gradient);
  return std::sqrt(total);
}

std::optional<size_t> first_not_finite(const Parameters& arrays) {
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (!std::isfinite(squared_norm(arrays[i]))) return i;
  }
  return std::nullopt;
}

double clip_factor(double norm, double max_norm) { return std::min(1.0, max_norm / (norm + 1e-6)); }

}  // namespace trunkline
