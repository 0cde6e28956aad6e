#include "train/cross_entropy.h"

#include <gtest/gtest.h>

namespace trunkline {
namespace {

// The same loss written out whole, differentiated by MLX; in f64, since MLX's f32 sums over a vocabulary are off by
// 1e-4.
mx::array plain_cross_entropy(const mx::array& x, const mx::array& head, const mx::array& targets) {
  const mx::array logits = mx::matmul(mx::astype(x, mx::float64), mx::transpose(mx::astype(head, mx::float64)));
  const mx::array losses =
      mx::subtract(mx::logsumexp(logits, -1, true), mx::take_along_axis(logits, mx::expand_dims(targets, 1), 1));
  return mx::astype(mx::sum(losses), mx::float32);
}

TEST(CrossEntropy, ChunksAddUpToTheWhole) {
  mx::random::seed(3);
  const int vocab = 60000, tokens = 600, hidden = 4;  // two chunks
  const mx::array x = mx::random::normal({tokens, hidden});
  const mx::array head = mx::random::normal({vocab, hidden});
  const mx::array targets = mx::astype(mx::random::randint(0, 7, {tokens}), mx::int32);  // most targets repeat
  const auto gradients = [&](auto loss) {
    return mx::value_and_grad([&](const std::vector<mx::array>& in) { return loss(in[0], in[1], targets); },
                              std::vector<int>{0, 1})({x, head});
  };
  auto [value, chunked] = gradients(summed_cross_entropy);
  auto [expected_value, expected] = gradients(plain_cross_entropy);
  EXPECT_NEAR(value.item<float>(), expected_value.item<float>(), 1e-5 * expected_value.item<float>());
  EXPECT_NEAR(summed_cross_entropy_value(x, head, targets).item<float>(), expected_value.item<float>(),
              1e-5 * expected_value.item<float>());
  for (size_t i = 0; i < 2; ++i) {
    const float largest = mx::max(mx::abs(expected[i])).item<float>();
    EXPECT_LT(mx::max(mx::abs(mx::subtract(chunked[i], expected[i]))).item<float>(), 1e-5f * largest) << i;
  }
}

TEST(CrossEntropy, StaysFiniteWhereTheTargetIsHopeless) {
  const mx::array x(std::vector<float>{300.0f}.begin(), {1, 1}, mx::float32);
  const mx::array head(std::vector<float>{1.0f, -1.0f}.begin(), {2, 1}, mx::float32);
  const std::vector<int32_t> target = {1};
  mx::array loss = summed_cross_entropy(x, head, mx::array(target.begin(), {1}, mx::int32));
  EXPECT_FLOAT_EQ(loss.item<float>(), 600.0f);
  EXPECT_FLOAT_EQ(summed_cross_entropy_value(x, head, mx::array(target.begin(), {1}, mx::int32)).item<float>(), 600.0f);
}

}  // namespace
}  // namespace trunkline
