#include "train/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/fail.h"
#include "bridge/arrays.h"
#include "comm/ranks_test.h"
#include "train/together.h"

namespace trunkline {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What each rank's `body` threw; empty for nothing.
std::vector<std::string> run_threads(
    int size, const std::function<void(Group&)>& body, const testing::Tweak& tweak = [](Config&) {}) {
  std::vector<std::string> texts;
  for (const testing::Thrown& thrown : testing::run_threads(size, body, tweak)) texts.push_back(thrown.text);
  return texts;
}

mx::array filled(int size, float value) {
  mx::array array = mx::contiguous(mx::full({size}, value));
  array.eval();
  return array;
}

TEST(Agreement, EqualFactsPass) {
  const auto errors = run_threads(3, [](Group& group) { require_agreement(group, {{"a", "1"}, {"b", "two\nlines"}}); });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(Agreement, EveryRankNamesEachDifference) {
  const auto errors = run_threads(3, [](Group& group) {
    std::vector<Fact> facts = {{"seed", group.rank() == 1 ? "7" : "3"}, {"same", "x"}};
    if (group.rank() == 2) facts.push_back({"test.jsonl", "5 rows"});
    require_agreement(group, facts);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("seed: 3 on ranks 0, 2; 7 on rank 1"),
                                 HasSubstr("test.jsonl: (absent) on ranks 0, 1; 5 rows on rank 2"))));
}

TEST(Agreement, TheFirstTensorThatDiffersIsNamed) {
  const std::vector<TensorShape> layout = {{"a", {4}}, {"b", {4}}, {"c", {4}}};
  std::vector<Parameters> parameters(2, Parameters{filled(4, 1.0f), filled(4, 2.0f), filled(4, 3.0f)});
  parameters[1][1] = filled(4, std::nextafter(2.0f, 3.0f));  // the last bit
  parameters[1][2] = filled(4, 4.0f);
  const auto errors = run_threads(2, [&](Group& group) {
    require_equal_weights(group, layout, {parameters[0][0]}, 1);
    require_equal_weights(group, layout, parameters[static_cast<size_t>(group.rank())], 100);
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("after step 100"), HasSubstr("b is the first tensor that differs"))));
}

TEST(Agreement, WithoutChecksumsACableIsSuspected) {
  EXPECT_THAT(suspects(3, true), HasSubstr("the rank that stands alone"));
  EXPECT_EQ(suspects(2, true), "suspect the memory of both ranks");
  EXPECT_THAT(suspects(2, false), AllOf(HasSubstr("TRUNKLINE_CRC=on"), HasSubstr("a cable may have damaged")));
}

TEST(Together, WaitsForTheSlowest) {
  std::atomic<int> finished = 0;
  const auto errors = run_threads(
      3,
      [&](Group& group) {
        together(group, [&] {
          // Longer than the deadline of a collective: a sign of life resets it.
          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(2500));
          ++finished;
        });
        EXPECT_EQ(finished, 3);
      },
      [](Config& config) { config.timeout = std::chrono::seconds(1); });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(Together, OneFailureEndsAllWithItsReason) {
  const auto errors = run_threads(3, [](Group& group) {
    together(group, [&] {
      if (group.rank() == 2) fail(ErrorKind::input, "train.jsonl:3: text: is missing");
    });
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("rank 2 ("), HasSubstr("train.jsonl:3: text: is missing")));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_EQ(errors[2], "train.jsonl:3: text: is missing");
}

TEST(Together, ValuesTravelBitByBit) {
  const auto errors = run_threads(2, [](Group& group) {
    const double mine = group.rank() == 0 ? 0.1 : std::nan("");
    const auto all = gather_values(group, {mine, 1e300});
    EXPECT_EQ(all[0][0], 0.1);
    EXPECT_TRUE(std::isnan(all[1][0]));
    EXPECT_EQ(all[1][1], 1e300);
  });
  EXPECT_THAT(errors, Each(IsEmpty()));
}

TEST(Arrays, AreSummedWhateverTheirLayoutAndSharing) {
  const int large = 50'000;
  std::vector<std::vector<mx::array>> arrays(2);
  for (auto& mine : arrays) {
    const mx::array matrix = mx::reshape(mx::arange(0.0f, 6.0f, 1.0f), {2, 3});
    const mx::array shared = filled(large, 2.0f);
    mine = {mx::transpose(matrix), mx::zeros({4}), shared, shared, mx::full({large}, 1.0f), mx::array(5.0f)};
    mx::eval(mine);
  }
  const auto errors = run_threads(2, [&](Group& group) { all_sum(group, arrays[static_cast<size_t>(group.rank())]); });
  ASSERT_THAT(errors, Each(IsEmpty()));
  for (const auto& mine : arrays) {
    EXPECT_TRUE(mx::array_equal(mine[0], mx::array({0.0f, 6.0f, 2.0f, 8.0f, 4.0f, 10.0f}, {3, 2})).item<bool>());
    EXPECT_TRUE(mx::array_equal(mine[1], mx::zeros({4})).item<bool>());
    EXPECT_TRUE(mx::array_equal(mine[2], mx::full({large}, 4.0f)).item<bool>());
    EXPECT_TRUE(mx::array_equal(mine[3], mx::full({large}, 4.0f)).item<bool>());
    EXPECT_TRUE(mx::array_equal(mine[4], mx::full({large}, 2.0f)).item<bool>());
    EXPECT_TRUE(mx::array_equal(mine[5], mx::array(10.0f)).item<bool>());
  }
}

}  // namespace
}  // namespace trunkline
