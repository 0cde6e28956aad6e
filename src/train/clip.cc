#include "train/clip.h"

#include <mlx/backend/cuda/cuda.h>

#include <algorithm>
#include <cmath>

#include "bridge/arrays.h"
#include "model/fused.h"
#include "model/parts.h"

namespace trunkline {
namespace {

constexpr int64_t kPartBytes = int64_t{256} << 20;  // of an array whose squares exist at once

std::vector<mx::array> scaled_squares(const std::vector<mx::array>& in) {
  return {mx::square(mx::astype(in[0], mx::float32) * mx::array(0x1p-32f))};
}

// A sum a block of threads, reading 16 bytes at a time. MLX itself would write the squares to memory.
constexpr const char* kCudaSumOfSquares = R"(
  constexpr int kEach = 16 / sizeof(T);
  const long long total = x_shape[0], vectors = total / kEach;
  const long long first = blockIdx.x * static_cast<long long>(blockDim.x) + threadIdx.x;
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  float sum = 0.0f;
  for (long long i = first; i < vectors; i += step) {
    const uint4 raw = reinterpret_cast<const uint4*>(x)[i];
    const T* values = reinterpret_cast<const T*>(&raw);
    for (int k = 0; k < kEach; ++k) {
      const float value = static_cast<float>(values[k]) * 2.3283064365386963e-10f;
      sum += value * value;
    }
  }
  for (long long i = vectors * kEach + first; i < total; i += step) {
    const float value = static_cast<float>(x[i]) * 2.3283064365386963e-10f;
    sum += value * value;
  }
  __shared__ float warps[32];
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_down_sync(0xffffffffu, sum, lanes);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int i = 0; i < blockDim.x / 32; ++i) all += warps[i];
    sums[blockIdx.x] = all;
  }
)";
constexpr int kThreads = 256, kBlocks = 1024;

// Sums that add up to the squares' [1, n].
mx::array sums_of_squares(const mx::array& gradient) {
  const mx::array x = mx::flatten(gradient);
  if (mx::cu::is_available()) {
    static const auto kernel = mx::fast::cuda_kernel("sum_of_squares", {"x"}, {"sums"}, kCudaSumOfSquares);
    return kernel({x}, {{1, kBlocks}}, {mx::float32}, {kBlocks * kThreads, 1, 1}, {kThreads, 1, 1}, {{"T", x.dtype()}},
                  std::nullopt, false, {})
        .front();
  }
  mx::array sum(0.0f);
  for (const auto& [begin, end] : parts_of(static_cast<int>(x.size()), kPartBytes / 4)) {
    // One part after another.
    const mx::array now = mx::depends({part(x, 0, begin, end)}, {sum}).front();
    sum = mx::add(sum, mx::sum(one_pass(scaled_squares, {now}).front()));
  }
  return mx::reshape(sum, {1, 1});
}

}  // namespace

mx::array squared_norms_on_device(const std::vector<mx::array>& gradients) {
  std::vector<mx::array> sums;
  for (const mx::array& gradient : gradients) sums.push_back(sums_of_squares(gradient));
  return mx::sum(mx::concatenate(sums, 0), 1);
}

double squared_norm(const mx::array& gradient) {
  if (mx::default_device() != mx::Device::cpu) {
    return static_cast<double>(squared_norms_on_device({gradient}).item<float>()) / kSquaresScale;
  }
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
