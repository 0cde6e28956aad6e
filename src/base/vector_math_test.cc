#include "base/vector_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/random.h"

namespace trunkline {
namespace {

// Lengths around the vectors' of every processor.
constexpr size_t kCounts[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 1000};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> numbers(size_t count, double spread, uint64_t seed) {
  Random random(seed);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(spread * (2 * random.uniform() - 1));
  return values;
}

double sigmoid_of(double x) { return 1 / (1 + std::exp(-x)); }

TEST(VectorMath, Softmax) {
  for (const size_t count : kCounts) {
    const std::vector<float> in = numbers(count, 30, count);
    std::vector<float> out(count);
    softmax(in.data(), out.data(), count, 0.5f);
    double sum = 0;
    for (const float x : in) sum += std::exp(0.5 * x);
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(out[i], std::exp(0.5 * in[i]) / sum, 1e-6);
    std::vector<float> same = in;
    softmax(same.data(), same.data(), count, 0.5f);
    EXPECT_EQ(same, out);
  }
}

TEST(VectorMath, SoftmaxOfLargeNumbers) {
  std::vector<float> x(40, -3e38f);
  x[17] = 1e38f;
  softmax(x.data(), x.data(), x.size(), 1.0f);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(x[i], i == 17 ? 1.0f : 0.0f);
}

TEST(VectorMath, SoftmaxHidesNothingThatIsNotFinite) {
  for (const size_t count : {size_t{1}, size_t{20}, size_t{37}}) {
    for (const float odd : {std::nanf(""), kInfinity, -kInfinity}) {
      for (const size_t at : {size_t{0}, count - 1}) {
        std::vector<float> x = numbers(count, 1, 3);
        x[at] = odd;
        softmax(x.data(), x.data(), count, 1.0f);
        EXPECT_TRUE(std::all_of(x.begin(), x.end(), [](float value) { return std::isnan(value); })) << odd << at;
      }
    }
  }
}

TEST(VectorMath, SoftmaxGradient) {
  for (const size_t count : kCounts) {
    std::vector<float> p = numbers(count, 3, count);
    softmax(p.data(), p.data(), count, 1.0f);
    std::vector<float> dp = numbers(count, 1, count + 1);
    double dot = 0;
    for (size_t i = 0; i < count; ++i) dot += double{p[i]} * dp[i];
    std::vector<double> expected(count);
    for (size_t i = 0; i < count; ++i) expected[i] = 0.25 * p[i] * (dp[i] - dot);
    softmax_gradient(p.data(), dp.data(), dp.data(), count, 0.25f);
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(dp[i], expected[i], 1e-6);
  }
}

TEST(VectorMath, Swiglu) {
  for (const size_t count : kCounts) {
    std::vector<float> gate = numbers(count, 20, count), up = numbers(count, 2, count + 1), out(count);
    if (count > 3) {
      gate[0] = -120;
      gate[1] = 120;
      gate[2] = -1e30f;
    }
    swiglu(gate.data(), up.data(), out.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const double expected = gate[i] * sigmoid_of(gate[i]) * up[i];
      EXPECT_NEAR(out[i], expected, 1e-6 * std::abs(expected) + 1e-7) << gate[i];
    }
  }
  float gate = std::nanf(""), up = 1, out = 0;
  swiglu(&gate, &up, &out, 1);
  EXPECT_TRUE(std::isnan(out));
}

TEST(VectorMath, SwigluGradients) {
  for (const size_t count : kCounts) {
    std::vector<float> gate = numbers(count, 20, count), up = numbers(count, 2, count + 1);
    const std::vector<float> g = gate, u = up, d = numbers(count, 1, count + 2);
    swiglu_gradients(gate.data(), up.data(), d.data(), gate.data(), up.data(), count);
    for (size_t i = 0; i < count; ++i) {
      const double s = sigmoid_of(g[i]);
      EXPECT_NEAR(gate[i], d[i] * u[i] * s * (1 + g[i] * (1 - s)), 1e-5);
      EXPECT_NEAR(up[i], d[i] * g[i] * s, 1e-5);
    }
  }
}

}  // namespace
}  // namespace trunkline
