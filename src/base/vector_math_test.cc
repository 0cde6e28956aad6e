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
    const float log_sum = softmax(in.data(), out.data(), count, 0.5f);
    double sum = 0;
    for (const float x : in) sum += std::exp(0.5 * x);
    EXPECT_NEAR(log_sum, std::log(sum), 2e-6);
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

double inverse_rms_of(const std::vector<float>& x, double epsilon) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  return 1 / std::sqrt(squares / static_cast<double>(x.size()) + epsilon);
}

TEST(VectorMath, RmsNorm) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = numbers(count, 5, count), weight = numbers(count, 2, count + 1);
    std::vector<float> out(count);
    rms_norm(x.data(), weight.data(), out.data(), count, 1e-2f);
    const double inverse = inverse_rms_of(x, 1e-2);
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(out[i], x[i] * inverse * weight[i], 2e-6);
    std::vector<float> same = x;
    rms_norm(same.data(), weight.data(), same.data(), count, 1e-2f);
    EXPECT_EQ(same, out);
    same[count - 1] = std::nanf("");
    rms_norm(same.data(), weight.data(), same.data(), count, 1e-2f);
    EXPECT_TRUE(std::all_of(same.begin(), same.end(), [](float value) { return std::isnan(value); }));
  }
}

// What comes of it is a loss that is none: one NaN is enough.
TEST(VectorMath, RmsNormOfAnInfinity) {
  for (const size_t count : kCounts) {
    for (const float odd : {kInfinity, -kInfinity}) {
      for (const size_t at : {size_t{0}, count - 1}) {
        std::vector<float> x = numbers(count, 5, count), out(count), d_x(count), d_weight(count);
        const std::vector<float> weight = numbers(count, 2, count + 1), d = numbers(count, 1, count + 2);
        x[at] = odd;
        rms_norm(x.data(), weight.data(), out.data(), count, 1e-2f);
        rms_norm_gradients(x.data(), weight.data(), d.data(), d_x.data(), d_weight.data(), count, 1e-2f);
        for (size_t i = 0; i < count; ++i) {
          EXPECT_TRUE(i == at ? std::isnan(out[i]) : out[i] == 0.0f) << count << " " << i;
          EXPECT_TRUE(std::isnan(d_x[i]));
          EXPECT_TRUE(i == at ? std::isnan(d_weight[i]) : d_weight[i] == 0.0f);
        }
      }
    }
  }
}

TEST(VectorMath, SwigluOfAnInfinity) {
  for (const size_t count : kCounts) {
    for (const float odd : {std::nanf(""), kInfinity, -kInfinity}) {
      std::vector<float> gate(count, odd), up(count, 2.0f), out(count);
      swiglu(gate.data(), up.data(), out.data(), count);
      EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float value) { return std::isfinite(value); })) << odd;
      swiglu(up.data(), gate.data(), out.data(), count);
      EXPECT_TRUE(std::none_of(out.begin(), out.end(), [](float value) { return std::isfinite(value); })) << odd;
    }
  }
}

TEST(VectorMath, RmsNormGradients) {
  for (const size_t count : kCounts) {
    const std::vector<float> x = numbers(count, 5, count), weight = numbers(count, 2, count + 1),
                             d = numbers(count, 1, count + 2);
    std::vector<float> d_x = d, d_weight(count, 0.5f);
    rms_norm_gradients(x.data(), weight.data(), d_x.data(), d_x.data(), d_weight.data(), count, 1e-2f);
    const double inverse = inverse_rms_of(x, 1e-2);
    double mean = 0;
    for (size_t i = 0; i < count; ++i) mean += double{d[i]} * weight[i] * x[i] * inverse / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(d_x[i], inverse * (double{d[i]} * weight[i] - x[i] * inverse * mean), 2e-6);
      EXPECT_NEAR(d_weight[i], 0.5 + d[i] * x[i] * inverse, 2e-6);
    }
    std::vector<float> in_x = x, again(count, 0.5f);
    rms_norm_gradients(in_x.data(), weight.data(), d.data(), in_x.data(), again.data(), count, 1e-2f);
    EXPECT_EQ(in_x, d_x);
    EXPECT_EQ(again, d_weight);
  }
}

TEST(VectorMath, Rotate) {
  for (const size_t half : kCounts) {
    const std::vector<float> x = numbers(2 * half, 5, half), angles = numbers(half, 4, half + 1);
    std::vector<float> cosine(half), sine(half), out(2 * half);
    for (size_t i = 0; i < half; ++i) {
      cosine[i] = std::cos(angles[i]);
      sine[i] = std::sin(angles[i]);
    }
    rotate(x.data(), cosine.data(), sine.data(), out.data(), half, false);
    for (size_t i = 0; i < half; ++i) {
      EXPECT_NEAR(out[i], x[i] * std::cos(angles[i]) - x[half + i] * std::sin(angles[i]), 2e-6);
      EXPECT_NEAR(out[half + i], x[half + i] * std::cos(angles[i]) + x[i] * std::sin(angles[i]), 2e-6);
    }
    rotate(out.data(), cosine.data(), sine.data(), out.data(), half, true);
    for (size_t i = 0; i < 2 * half; ++i) EXPECT_NEAR(out[i], x[i], 3e-6);
  }
}

// Any cut of the arrays gives the same bits.
TEST(VectorMath, AdamwStep) {
  const AdamwFactors factors{.scale = 0.5f,
                             .beta1 = 0.9f,
                             .rest1 = 0.1f,
                             .beta2 = 0.99f,
                             .rest2 = 0.01f,
                             .keep = 0.999f,
                             .rate = 0.02f,
                             .root = 3.0f,
                             .epsilon = 1e-3f};
  for (const size_t count : kCounts) {
    const std::vector<float> w = numbers(count, 2, count), m = numbers(count, 1, count + 1),
                             gradient = numbers(count, 5, count + 2);
    std::vector<float> v = numbers(count, 1, count + 3);
    for (float& x : v) x = std::abs(x);
    std::vector<float> new_w = w, new_m = m, new_v = v, cut_w = w, cut_m = m, cut_v = v;
    adamw_step(new_w.data(), new_m.data(), new_v.data(), gradient.data(), count, factors);
    for (size_t i = 0; i < count; ++i) {
      const double g = 0.5 * gradient[i], mean = 0.9 * m[i] + 0.1 * g, squares = 0.99 * v[i] + 0.01 * g * g;
      EXPECT_NEAR(new_m[i], mean, 1e-6);
      EXPECT_NEAR(new_v[i], squares, 1e-6);
      EXPECT_NEAR(new_w[i], 0.999 * w[i] - 0.02 * mean / (3 * std::sqrt(squares) + 1e-3), 1e-6);
    }
    for (size_t i = 0; i < count; ++i) adamw_step(&cut_w[i], &cut_m[i], &cut_v[i], &gradient[i], 1, factors);
    EXPECT_EQ(cut_w, new_w);
    EXPECT_EQ(cut_m, new_m);
    EXPECT_EQ(cut_v, new_v);
  }
}

}  // namespace
}  // namespace trunkline
