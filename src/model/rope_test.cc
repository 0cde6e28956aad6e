#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trunkline {
namespace {

using Type = RopeShape::Type;

struct Expected {
  RopeShape shape;
  int head_dim;
  std::vector<float> inverse;
  double factor;
};

// What transformers 5.17 computes (ROPE_INIT_FUNCTIONS).
const std::vector<Expected>& expected() {
  static const std::vector<Expected> table = {
      {{.type = Type::linear, .theta = 1e6, .factor = 2.5},
       16,
       {0.4000000059604645f, 0.07113117724657059f, 0.012649111449718475f, 0.002249365206807852f, 0.0004000000189989805f,
        7.113117317203432e-05f, 1.2649109521589708e-05f, 2.2493654796562623e-06f},
       1.0},
      {{.type = Type::llama3,
        .theta = 5e5,
        .factor = 8,
        .low_freq_factor = 1,
        .high_freq_factor = 4,
        .original_max_positions = 64},
       16,
       {1.0f, 0.07940301299095154f, 0.004700753837823868f, 0.0009115831344388425f, 0.00017677668074611574f,
        3.428102354519069e-05f, 6.647869668086059e-06f, 1.289173155782919e-06f},
       1.0},
      {{.type = Type::yarn, .theta = 1e6, .factor = 4, .original_max_positions = 64},
       16,
       {1.0f, 0.11114246398210526f, 0.007905694656074047f, 0.0014058533124625683f, 0.0002500000118743628f,
        4.4456985051510856e-05f, 7.905693564680405e-06f, 1.405853367941745e-06f},
       1.138629436111989},
      {{.type = Type::yarn,
        .theta = 1e4,
        .factor = 4,
        .original_max_positions = 64,
        .beta_fast = 16,
        .beta_slow = 2,
        .mscale = 0.707,
        .mscale_all_dim = 0.5,
        .truncate = false},
       16,
       {1.0f, 0.14849025011062622f, 0.02500000037252903f, 0.007905694656074047f, 0.0024999999441206455f,
        0.0007905694656074047f, 0.0002500000118743628f, 7.905694656074047e-05f},
       1.0268361529030026},
      {{.type = Type::yarn,
        .theta = 1e4,
        .factor = 4,
        .original_max_positions = 64,
        .attention_factor = 0.8,
        .mscale = 0.707},
       16,
       {1.0f, 0.23717081546783447f, 0.04999999701976776f, 0.007905694656074047f, 0.0024999999441206455f,
        0.0007905694656074047f, 0.0002500000118743628f, 7.905694656074047e-05f},
       0.8},
      {{.type = Type::yarn, .theta = 1e4, .factor = 0.5, .original_max_positions = 4096},
       4,
       {1.0f, 0.014999999664723873f},
       1.0},
  };
  return table;
}

TEST(Rope, FrequenciesAreThoseOfTransformers) {
  for (const Expected& e : expected()) {
    const std::vector<float> inverse = inverse_frequencies(e.shape, e.head_dim);
    ASSERT_EQ(inverse.size(), e.inverse.size());
    for (size_t i = 0; i < inverse.size(); ++i) EXPECT_NEAR(inverse[i] / e.inverse[i], 1.0, 3e-7) << i;
    EXPECT_NEAR(attention_factor(e.shape), e.factor, 1e-12);
  }
}

// Position 4000 is where a wrong base or a 16-bit position shows.
TEST(Rope, RotatesPairsAtFarPositions) {
  constexpr int kHeadDim = 8, kOffset = 3990, kTokens = 11;
  for (const mx::Dtype dtype : {mx::float32, mx::bfloat16}) {
    const RopeShape shape{.theta = 1e5};
    const std::vector<float> inverse = inverse_frequencies(shape, kHeadDim);
    const mx::array x = mx::random::normal({1, 2, kTokens, kHeadDim}, dtype, mx::random::key(1));
    mx::array got = mx::astype(
        Rope(shape, kHeadDim).table(mx::arange(kOffset, kOffset + kTokens, mx::int32), dtype).rotate(x), mx::float32);
    mx::array from = mx::astype(x, mx::float32);
    mx::eval(got, from);
    const double tolerance = dtype == mx::float32 ? 1e-3 : 2e-2;
    for (int row = 0; row < 2 * kTokens; ++row) {
      for (int i = 0; i < kHeadDim / 2; ++i) {
        const double angle = double(kOffset + row % kTokens) * inverse[static_cast<size_t>(i)];
        const double a = from.data<float>()[row * kHeadDim + i];
        const double b = from.data<float>()[row * kHeadDim + i + kHeadDim / 2];
        const double first = a * std::cos(angle) - b * std::sin(angle);
        const double second = b * std::cos(angle) + a * std::sin(angle);
        EXPECT_NEAR(got.data<float>()[row * kHeadDim + i], first, tolerance);
        EXPECT_NEAR(got.data<float>()[row * kHeadDim + i + kHeadDim / 2], second, tolerance);
      }
    }
  }
}

// Rows of one batch may stand at different places, and begin anew within a row.
TEST(Rope, PositionsMayDifferFromRowToRow) {
  const Rope rope(RopeShape{.theta = 1e4}, 8);
  const mx::array x = mx::random::normal({2, 3, 4, 8}, mx::float32, mx::random::key(2));
  const mx::array positions({0, 1, 0, 1, 7, 8, 9, 0}, {2, 4}, mx::int32);
  const RopeTable both = rope.table(positions, mx::float32);
  const mx::array got = both.rotate(x);
  for (int row = 0; row < 2; ++row) {
    const mx::array own = mx::slice(x, {row, 0, 0, 0}, {row + 1, 3, 4, 8});
    const RopeTable alone = rope.table(mx::reshape(mx::slice(positions, {row, 0}, {row + 1, 4}), {4}), mx::float32);
    const mx::array expected = alone.rotate(own);
    EXPECT_TRUE(mx::array_equal(mx::slice(got, {row, 0, 0, 0}, {row + 1, 3, 4, 8}), expected).item<bool>()) << row;
    const mx::array of_part = both.part(1, 3).rotate(mx::slice(x, {0, 0, 1, 0}, {2, 3, 3, 8}));
    EXPECT_TRUE(mx::array_equal(of_part, mx::slice(got, {0, 0, 1, 0}, {2, 3, 3, 8})).item<bool>());
  }
}

}  // namespace
}  // namespace trunkline
