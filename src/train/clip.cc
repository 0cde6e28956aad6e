#include "train/clip.h"

#include <algorithm>
#include <cmath>

#include "bridge/arrays.h"
#include "model/parts.h"

namespace trunkline {
namespace {

constexpr int64_t kPartBytes = int64_t{64} << 20;  // of an array whose squares exist at once

// On a GPU: relative to the largest entry, so that squares of large numbers do not overflow f32.
std::vector<double> squared_norms_on_device(const std::vector<mx::array>& arrays) {
  std::vector<mx::array> results;  // of each array: its largest entry, and the sum of the squares over that
  for (const mx::array& array : arrays) {
    const mx::array x = mx::reshape(mx::astype(array, mx::float32), {-1});
    const mx::array top = mx::max(mx::abs(x));
    const mx::array inverse = mx::divide(mx::array(1.0f), mx::maximum(top, mx::array(1e-30f)));
    mx::array sum(0.0f);
    for (const auto& [begin, end] : parts_of(static_cast<int>(x.size()), kPartBytes / 4)) {
      // One part after another.
      const mx::array now = mx::depends({part(x, 0, begin, end)}, {sum}).front();
      sum = mx::add(sum, mx::sum(mx::square(mx::multiply(now, inverse))));
    }
    results.insert(results.end(), {top, sum});
  }
  mx::eval(results);
  std::vector<double> norms;
  for (size_t i = 0; i < results.size(); i += 2) {
    const double top = results[i].item<float>(), scale = std::max(top, 1e-30);
    norms.push_back(std::isfinite(top) ? scale * scale * results[i + 1].item<float>() : top);
  }
  return norms;
}

}  // namespace

double squared_norm(const mx::array& gradient) {
  if (mx::default_device() != mx::Device::cpu) return squared_norms_on_device({gradient}).front();
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

std::vector<double> squared_norms(const std::vector<mx::array>& gradients) {
  if (mx::default_device() != mx::Device::cpu) return squared_norms_on_device(gradients);
  std::vector<double> norms;
  for (const mx::array& gradient : gradients) norms.push_back(squared_norm(gradient));
  return norms;
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
