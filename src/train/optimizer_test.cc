#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "train/clip.h"
#include "train/schedule.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

mx::array vector_of(std::vector<float> values) {
  return mx::array(values.begin(), {static_cast<int>(values.size())}, mx::float32);
}

// Three steps on one weight, in plain double arithmetic as torch documents them; in place and by MLX.
class OptimizerUpdate : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(InPlaceOrNot, OptimizerUpdate, ::testing::Bool());

TEST_P(OptimizerUpdate, SgdWithMomentumAndDecayFollowsTheTextbook) {
  Optimizer optimizer({.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.01, .momentum = 0.9}, {{"w", {1}}},
                      Trained::all(1), GetParam());
  mx::array w = vector_of({2.0f});
  double expected = 2.0, velocity = 0.0;
  for (int step = 0; step < 3; ++step) {
    const double gradient = 0.5 * step - 0.3;
    velocity = 0.9 * velocity + gradient + 0.01 * expected;
    expected -= 0.1 * velocity;
    optimizer.begin_step(0.1);
    optimizer.update(0, w, vector_of({static_cast<float>(gradient * 4)}), 0.25f);
  }
  EXPECT_NEAR(w.item<float>(), expected, 1e-6);
}

TEST_P(OptimizerUpdate, PlainSgdFollowsTheTextbook) {
  Optimizer optimizer({.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.5}, {{"w", {1}}}, Trained::all(1),
                      GetParam());
  mx::array w = vector_of({2.0f});
  optimizer.begin_step(0.1);
  optimizer.update(0, w, vector_of({3.0f}), 2.0f);
  EXPECT_NEAR(w.item<float>(), 2.0 - 0.1 * (6.0 + 0.5 * 2.0), 1e-6);
}

// A thousandth of a weight's last bf16 digit, a thousand times: pure bf16 never moves, masters add it up, and rows that
// are updated alone too.
TEST_P(OptimizerUpdate, MastersKeepWhatBf16WouldLose) {
  const OptimizerOptions sgd{.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0};
  const std::vector<TensorShape> layout = {{"w", {2}}};
  const mx::array gradient = vector_of({-1.0f});
  for (const bool masters : {false, true}) {
    Optimizer optimizer(sgd, layout, Trained::all(1), GetParam());
    mx::array w = mx::astype(vector_of({1.0f, 1.0f}), mx::bfloat16);
    if (masters) optimizer.keep_masters({vector_of({1.0f, 1.0f})});
    EXPECT_EQ(optimizer.state_bytes(), masters ? 4 : 0);
    for (int step = 0; step < 1000; ++step) {
      optimizer.begin_step(0x1p-7 / 1000);
      for (const int64_t row : {0, 1}) optimizer.update(0, w, gradient, 1.0f, row);
    }
    EXPECT_EQ(w.dtype(), mx::bfloat16);
    const mx::array got = mx::astype(w, mx::float32), full = optimizer.weights({w}).front();
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(mx::take(got, i).item<float>(), masters ? 1.0f + 0x1p-7f : 1.0f);
      EXPECT_NEAR(mx::astype(mx::take(full, i), mx::float32).item<float>(), masters ? 1.0f + 0x1p-7f : 1.0f,
                  1e-4);  // f32 rounds too
    }
  }
}

TEST_P(OptimizerUpdate, AdamWFollowsTheTextbook) {
  Optimizer optimizer({.weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95}, {{"w", {1}}}, Trained::all(1), GetParam());
  mx::array w = vector_of({2.0f});
  double expected = 2.0, m = 0.0, v = 0.0;
  for (int step = 1; step <= 3; ++step) {
    const double gradient = 0.5 * step - 0.3;
    expected *= 1.0 - 0.01 * 0.1;
    m = 0.9 * m + 0.1 * gradient;
    v = 0.95 * v + 0.05 * gradient * gradient;
    expected -= 0.01 * (m / (1 - std::pow(0.9, step))) / (std::sqrt(v / (1 - std::pow(0.95, step))) + 1e-8);
    optimizer.begin_step(0.01);
    optimizer.update(0, w, vector_of({static_cast<float>(gradient)}));
  }
  EXPECT_NEAR(w.item<float>(), expected, 1e-6);
}

TEST(Optimizer, GoesOnFromItsStateToTheSameBits) {
  const OptimizerOptions options{.weight_decay = 0.1};
  const std::vector<TensorShape> layout = {{"a", {3}}, {"b", {2}}};
  const auto step = [](Optimizer& optimizer, Parameters& parameters) {
    optimizer.begin_step(0.01);
    for (size_t i = 0; i < parameters.size(); ++i) optimizer.update(i, parameters[i], mx::sin(parameters[i]));
  };
  Parameters whole = {vector_of({1, 2, 3}), vector_of({4, 5})};
  Optimizer first(options, layout, Trained::all(2));
  step(first, whole);
  step(first, whole);
  Parameters resumed = whole;
  Optimizer second(options, layout, Trained::all(2));
  second.restore(first.state(), first.steps());
  step(first, whole);
  step(second, resumed);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(mx::array_equal(whole[i], resumed[i]).item<bool>());

  EXPECT_THROW(second.restore({}, 1), Error);
  auto extra = first.state();
  extra.emplace_back("c.m", vector_of({1}));
  EXPECT_THROW(second.restore(extra, 1), Error);
}

// Rows one part after another are the whole.
TEST(Optimizer, UpdatesRowsByThemselves) {
  for (const bool in_place : {true, false}) {
    for (const OptimizerOptions& options :
         {OptimizerOptions{.weight_decay = 0.1},
          OptimizerOptions{.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.1, .momentum = 0.9}}) {
      const std::vector<TensorShape> layout = {{"w", {5, 3}}};
      const mx::array start = mx::random::normal({5, 3}, mx::float32, mx::random::key(1));
      const mx::array gradient = mx::random::normal({5, 3}, mx::float32, mx::random::key(2));
      mx::eval(start, gradient);
      Optimizer whole(options, layout, Trained::all(1), in_place), cut(options, layout, Trained::all(1), in_place);
      mx::array a = start, b = start;
      for (int step = 0; step < 3; ++step) {
        whole.begin_step(0.1);
        whole.update(0, a, gradient, 0.5f);
        cut.begin_step(0.1);
        for (const auto& [begin, end] : {std::pair(0, 2), {2, 3}, {3, 5}}) {
          cut.update(0, b, mx::slice(gradient, {begin, 0}, {end, 3}), 0.5f, begin);
        }
      }
      EXPECT_TRUE(mx::array_equal(a, b).item<bool>()) << in_place;
      const auto x = whole.state(), y = cut.state();
      for (size_t i = 0; i < x.size(); ++i) {
        EXPECT_TRUE(mx::array_equal(x[i].second, y[i].second).item<bool>()) << x[i].first;
      }
    }
  }
}

// A tensor that someone else still holds is copied, not written to.
TEST(Optimizer, LeavesSharedTensorsAlone) {
  Optimizer optimizer({}, {{"w", {2}}}, Trained::all(1), true);
  mx::array w = vector_of({1, 2});
  const mx::array before = w;
  const auto state = optimizer.state();
  optimizer.begin_step(0.1);
  optimizer.update(0, w, vector_of({1, 1}));
  EXPECT_TRUE(mx::array_equal(before, vector_of({1, 2})).item<bool>());
  EXPECT_TRUE(mx::array_equal(state[0].second, mx::zeros({2})).item<bool>());
  EXPECT_FALSE(mx::array_equal(w, before).item<bool>());
}

TEST(Optimizer, SmallUpdatesAreNotRoundedAway) {
  Optimizer optimizer({.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0}, {{"w", {1}}}, Trained::all(1));
  mx::array w = vector_of({1.0f});
  for (int step = 0; step < 2000; ++step) {
    optimizer.begin_step(1e-5);
    optimizer.update(0, w, vector_of({1.0f}));
  }
  EXPECT_NEAR(w.item<float>(), 0.98, 1e-4);
}

TEST(Clip, NormsAndFactors) {
  EXPECT_DOUBLE_EQ(global_norm({vector_of({3, 0}), vector_of({0, 0, 0, 0, 0, 0, 0, 0, 0, 4})}), 5.0);
  EXPECT_DOUBLE_EQ(clip_factor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(4.0, 1.0), 1.0 / (4.0 + 1e-6));
  EXPECT_TRUE(std::isinf(squared_norm(vector_of({1, INFINITY}))));
  EXPECT_TRUE(std::isnan(squared_norm(vector_of({NAN, 1}))));
  EXPECT_TRUE(std::isfinite(squared_norm(vector_of({3e38f, 3e38f}))));
}

TEST(Schedule, WarmsUpThenDecays) {
  const Schedule cosine({.name = "cosine_decay", .arguments = {1.0, 10, 0.1}, .warmup = 4});
  EXPECT_DOUBLE_EQ(cosine.rate(0), 0.0);
  EXPECT_DOUBLE_EQ(cosine.rate(2), 0.5);
  EXPECT_DOUBLE_EQ(cosine.rate(4), 1.0);
  EXPECT_DOUBLE_EQ(cosine.rate(5), 1.0);
  EXPECT_NEAR(cosine.rate(10), 0.55, 1e-12);
  EXPECT_NEAR(cosine.rate(15), 0.1, 1e-12);
  EXPECT_NEAR(cosine.rate(100), 0.1, 1e-12);
  const Schedule linear({.name = "linear_schedule", .arguments = {1.0, 0.0, 4}});
  EXPECT_DOUBLE_EQ(linear.rate(1), 0.75);
  EXPECT_DOUBLE_EQ(linear.rate(9), 0.0);
  EXPECT_DOUBLE_EQ(Schedule({.name = "step_decay", .arguments = {1.0, 0.5, 10}}).rate(25), 0.25);
  EXPECT_DOUBLE_EQ(Schedule({.name = "constant", .arguments = {0.3}}).rate(7), 0.3);
}

TEST(Schedule, RefusesWhatItDoesNotKnow) {
  EXPECT_THROW(Schedule({.name = "polynomial", .arguments = {1.0}}), Error);
  EXPECT_THROW(Schedule({.name = "cosine_decay", .arguments = {1.0}}), Error);
  EXPECT_THROW(Schedule({.name = "linear_schedule", .arguments = {1.0, 0.0, 0}}), Error);
  EXPECT_THROW(Schedule({.name = "constant", .arguments = {-1.0}}), Error);
}

}  // namespace
}  // namespace trunkline
