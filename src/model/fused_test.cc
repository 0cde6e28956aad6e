#include "model/fused.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "model/attention.h"
#include "model/rms_norm.h"
#include "model/rope.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;
using Function = std::function<mx::array(const Arrays&)>;

mx::array normal(const mx::Shape& shape, uint64_t seed) {
  return mx::random::normal(shape, mx::float32, mx::random::key(seed));
}

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(a - b)).item<float>(); }

// The value and all gradients of `mine` are those of `theirs`, for a cotangent that is not contiguous.
void expect_same(const Function& mine, const Function& theirs, const Arrays& in) {
  const auto run = [&](const Function& function) {
    const auto list = [&](const Arrays& arrays) { return Arrays{function(arrays)}; };
    mx::Shape swapped = list(in)[0].shape();
    std::swap(swapped[swapped.size() - 1], swapped[swapped.size() - 2]);
    auto [values, gradients] = mx::vjp(list, in, {mx::swapaxes(normal(swapped, 99), -1, -2)});
    values.insert(values.end(), gradients.begin(), gradients.end());
    return values;
  };
  const Arrays got = run(mine), expected = run(theirs);
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].shape(), expected[i].shape());
    EXPECT_LT(furthest(got[i], expected[i]), 2e-5) << i;
  }
}

TEST(Fused, Swiglu) {
  const Function theirs = [](const Arrays& in) { return in[0] * mx::sigmoid(in[0]) * in[1]; };
  const Function mine = [](const Arrays& in) { return swiglu(in[0], in[1]); };
  expect_same(mine, theirs, {normal({3, 5, 7}, 1), normal({3, 5, 7}, 2)});
  const mx::array x = mx::swapaxes(normal({9, 4}, 3), 0, 1);
  expect_same(mine, theirs, {x, normal({4, 9}, 4)});
  // One array in both places, and inputs that are used again.
  expect_same([](const Arrays& in) { return swiglu(in[0], in[0]) + in[0]; },
              [](const Arrays& in) { return in[0] * mx::sigmoid(in[0]) * in[0] + in[0]; }, {x});
}

TEST(Fused, Softmax) {
  expect_same([](const Arrays& in) { return row_softmax(in[0]) * in[0]; },
              [](const Arrays& in) { return mx::softmax(in[0], -1) * in[0]; }, {normal({6, 37}, 1)});
}

TEST(Fused, SoftmaxAndLogSums) {
  const mx::array x = mx::swapaxes(normal({6, 3, 37}, 1) * mx::array(9.0f), 0, 1);
  const auto [p, log_sums] = row_softmax_and_log_sums(x);
  EXPECT_EQ(log_sums.shape(), (mx::Shape{3, 6, 1}));
  EXPECT_LT(furthest(p, mx::softmax(x, -1)), 1e-6);
  EXPECT_LT(furthest(log_sums, mx::logsumexp(x, -1, true)), 1e-5);
}

// Row lengths that whole vectors divide and that they do not; more rows than are summed at once; one row.
TEST(Fused, RmsNorm) {
  for (const mx::Shape& shape : {mx::Shape{3, 70, 37}, mx::Shape{2, 5, 64}, mx::Shape{1, 1, 576}, mx::Shape{4, 3, 1}}) {
    const mx::array weight = normal({shape.back()}, 2);
    for (const mx::array& x : {normal(shape, 1), mx::swapaxes(normal({shape[1], shape[0], shape[2]}, 1), 0, 1)}) {
      // What is summed over rows is further from zero.
      expect_same([](const Arrays& in) { return rms_norm(in[0], in[1], 1e-3f) * mx::array(0.1f); },
                  [](const Arrays& in) { return mx::fast::rms_norm(in[0], in[1], 1e-3f) * mx::array(0.1f); },
                  {x, weight});
      // What only one of them owes.
      expect_same([&](const Arrays& in) { return rms_norm(in[0], weight, 1e-3f); },
                  [&](const Arrays& in) { return mx::fast::rms_norm(in[0], weight, 1e-3f); }, {x});
      expect_same([&](const Arrays& in) { return rms_norm(x, in[0], 1e-3f) * mx::array(0.1f); },
                  [&](const Arrays& in) { return mx::fast::rms_norm(x, in[0], 1e-3f) * mx::array(0.1f); }, {weight});
    }
  }
}

// Beside the pairs turned by MLX's operations; heads as projections give them, in row order and in neither.
TEST(Fused, Rotation) {
  const Rope rope(RopeShape{.theta = 1e4}, 14);
  for (const mx::array& positions :
       {mx::arange(5, mx::int32), mx::array({0, 1, 2, 0, 1, 4, 5, 6, 7, 8}, {2, 5}, mx::int32)}) {
    const RopeTable table = rope.table(positions, mx::float32);
    const auto turned = [](const mx::array& x, const mx::array& cosine, const mx::array& sine) {
      const Arrays halves = mx::split(x, 2, -1);
      return mx::concatenate({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1);
    };
    for (const mx::array& x : {mx::swapaxes(normal({2, 5, 3, 14}, 1), 1, 2), normal({2, 3, 5, 14}, 1),
                               mx::swapaxes(normal({2, 3, 14, 5}, 1), -1, -2)}) {
      expect_same([&](const Arrays& in) { return table.rotate(in[0]); },
                  [&](const Arrays& in) { return turned(in[0], table.cosine, table.sine); }, {x});
      expect_same([&](const Arrays& in) { return table.rotate_back(in[0]); },
                  [&](const Arrays& in) { return turned(in[0], table.cosine, mx::negative(table.sine)); }, {x});
    }
  }
}

TEST(Fused, Linear) {
  const Function theirs = [](const Arrays& in) { return mx::addmm(in[2], in[0], mx::transpose(in[1])); };
  expect_same([](const Arrays& in) { return linear(in[0], in[1], &in[2]); }, theirs,
              {normal({2, 3, 8}, 1), normal({5, 8}, 2), normal({5}, 3)});
  const auto gradient = mx::vjp([](const Arrays& in) { return Arrays{linear(in[0], in[1])}; },
                                {normal({2, 3, 8}, 1), normal({5, 8}, 2)}, {normal({2, 3, 5}, 3)})
                            .second[1];
  mx::array weight_gradient = gradient;
  weight_gradient.eval();
  EXPECT_TRUE(weight_gradient.flags().row_contiguous) << "in the weight's own layout";
}

TEST(Attention, IsThatOfMlx) {
  struct Case {
    int rows, heads, key_heads, tokens, positions;
  };
  for (const Case& c : {Case{2, 6, 2, 9, 9}, Case{1, 4, 4, 5, 5}, Case{2, 3, 1, 4, 11}, Case{1, 4, 2, 1, 7}}) {
    const Arrays in = {normal({c.rows, c.heads, c.tokens, 8}, 1), normal({c.rows, c.key_heads, c.positions, 8}, 2),
                       normal({c.rows, c.key_heads, c.positions, 8}, 3)};
    expect_same([](const Arrays& a) { return causal_attention(a[0], a[1], a[2]); },
                [](const Arrays& a) {
                  return mx::fast::scaled_dot_product_attention(a[0], a[1], a[2], 1 / std::sqrt(8.0f), "causal");
                },
                in);
  }
}

// Arrays that are let go at once: an output may take an input's memory, never one that is still needed.
TEST(Fused, ReusesOnlyWhatIsLetGo) {
  mx::array x = normal({64, 64}, 5);
  x.eval();
  const mx::array copy(x.data<float>(), x.shape());
  for (int i = 0; i < 3; ++i) {
    mx::array y = swiglu(row_softmax(x + mx::array(1.0f)), row_softmax(x));
    y.eval();
    EXPECT_LT(furthest(y,
                       [&] {
                         const mx::array p = mx::softmax(x, -1);
                         return p * mx::sigmoid(p) * p;
                       }()),
              1e-6);
  }
  EXPECT_EQ(furthest(x, copy), 0.0);
}

TEST(Fused, AddInF32) {
  const mx::array sum = normal({3, 5}, 1), x = mx::astype(normal({3, 5}, 2), mx::bfloat16);
  const mx::array made = add_in_f32(sum, x);
  EXPECT_EQ(made.dtype(), mx::float32);
  EXPECT_TRUE(mx::array_equal(made, sum + mx::astype(x, mx::float32)).item<bool>());
}

}  // namespace
}  // namespace trunkline
