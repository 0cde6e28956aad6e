#include "train/batches.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

TEST(StepRows, TakesEveryRowOnceAnEpoch) {
  for (const int64_t rows : {1, 7, 8, 101}) {
    for (const int64_t per_step : {1, 2, 8, 200}) {
      const StepRows steps(rows, per_step, 3);
      ASSERT_EQ(steps.steps_per_epoch(), (rows + per_step - 1) / per_step);
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        std::vector<int64_t> seen;
        for (int64_t i = 0; i < steps.steps_per_epoch(); ++i) {
          const auto taken = steps.step(epoch * steps.steps_per_epoch() + i);
          const int64_t left = rows - static_cast<int64_t>(seen.size());
          EXPECT_EQ(static_cast<int64_t>(taken.size()), std::min(per_step, left));
          seen.insert(seen.end(), taken.begin(), taken.end());
        }
        std::sort(seen.begin(), seen.end());
        std::vector<int64_t> all(static_cast<size_t>(rows));
        std::iota(all.begin(), all.end(), 0);
        EXPECT_EQ(seen, all);
      }
    }
  }
}

// A resumed run asks for step 12 without having asked for those before.
TEST(StepRows, DependsOnSeedAndSizesAlone) {
  const StepRows forward(50, 8, 1), resumed(50, 8, 1), other_seed(50, 8, 2);
  std::vector<std::vector<int64_t>> steps;
  for (int64_t i = 0; i < 20; ++i) steps.push_back(forward.step(i));
  for (int64_t i = 19; i >= 0; --i) EXPECT_EQ(resumed.step(i), steps[static_cast<size_t>(i)]);
  EXPECT_NE(other_seed.step(0), steps[0]);
  EXPECT_NE(steps[0], steps[7]);  // the next epoch has another order
}

// The same on every machine, or ranks could not share a job.
TEST(StepRows, IsThisOrder) {
  EXPECT_EQ(StepRows(10, 10, 0).step(0), (std::vector<int64_t>{5, 6, 3, 8, 0, 9, 2, 4, 7, 1}));
}

TEST(StepRows, RefusesNonsense) {
  EXPECT_THROW(StepRows(0, 1, 0), Error);
  EXPECT_THROW(StepRows(1, 0, 0), Error);
  EXPECT_THROW(StepRows(1, 1, 0).step(-1), Error);
}

TEST(Spread, GivesEachRowToOneRankInSmallEnoughBatches) {
  Random random(5);
  for (int round = 0; round < 200; ++round) {
    const auto count = static_cast<size_t>(random.below(40));
    std::vector<int64_t> rows(count), lengths(count);
    for (size_t i = 0; i < count; ++i) {
      rows[i] = static_cast<int64_t>(i) * 3 + 1;
      lengths[i] = 1 + static_cast<int64_t>(random.below(random.below(2) == 0 ? 20 : 2000));
    }
    random.shuffle(std::span(rows));
    const int ranks = 1 + static_cast<int>(random.below(8));
    const int64_t most = 1 + static_cast<int64_t>(random.below(5));
    const auto result = spread(rows, lengths, ranks, most);
    ASSERT_EQ(static_cast<int>(result.size()), ranks);

    std::vector<int64_t> seen;
    std::vector<int64_t> tokens;
    for (const auto& batches : result) {
      int64_t sum = 0, previous = std::numeric_limits<int64_t>::max();
      for (size_t b = 0; b < batches.size(); ++b) {
        EXPECT_LE(static_cast<int64_t>(batches[b].size()), most);
        EXPECT_FALSE(batches[b].empty());
        for (const int64_t row : batches[b]) {
          const int64_t length = lengths[static_cast<size_t>(std::find(rows.begin(), rows.end(), row) - rows.begin())];
          EXPECT_LE(length, previous);  // sorted: a micro-batch has little padding
          previous = length;
          sum += length;
          seen.push_back(row);
        }
      }
      tokens.push_back(sum);
    }
    std::vector<int64_t> expected = rows;
    std::sort(expected.begin(), expected.end());
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(seen, expected);

    // Graham's bound for longest first: 4/3 of the best possible, which is at least the mean and the longest row.
    const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
    const int64_t longest = count == 0 ? 0 : *std::max_element(lengths.begin(), lengths.end());
    const auto [least, greatest] = std::minmax_element(tokens.begin(), tokens.end());
    EXPECT_LE(*greatest - *least, longest);
    EXPECT_LE(*greatest, total / ranks + longest);
  }
}

TEST(Spread, ManyRowsOfMixedLengthsAreNearlyEven) {
  Random random(9);
  std::vector<int64_t> rows(64), lengths(64);
  std::iota(rows.begin(), rows.end(), 0);
  for (int64_t& length : lengths) length = 5 + static_cast<int64_t>(random.below(496));
  std::vector<int64_t> tokens;
  for (const auto& batches : spread(rows, lengths, 4, 4)) {
    int64_t sum = 0;
    for (const MicroBatch& batch : batches) {
      for (const int64_t row : batch) sum += lengths[static_cast<size_t>(row)];
    }
    tokens.push_back(sum);
  }
  const auto [least, greatest] = std::minmax_element(tokens.begin(), tokens.end());
  EXPECT_LT(static_cast<double>(*greatest), 1.01 * static_cast<double>(*least));
}

TEST(Spread, CutsWherePaddingWouldCostMore) {
  const std::vector<int64_t> rows = {0, 1, 2, 3, 4}, lengths = {500, 490, 30, 28, 5};
  EXPECT_EQ(spread(rows, lengths, 1, 8), (std::vector<std::vector<MicroBatch>>{{{0, 1}, {2, 3, 4}}}));
  EXPECT_EQ(spread(rows, lengths, 1, 2), (std::vector<std::vector<MicroBatch>>{{{0, 1}, {2, 3}, {4}}}));
}

TEST(Spread, DoesNotDependOnTheOrderOfRows) {
  const std::vector<int64_t> rows = {4, 8, 15, 16, 23, 42}, lengths = {7, 7, 9, 7, 1, 9};
  const std::vector<int64_t> turned(rows.rbegin(), rows.rend()), turned_lengths(lengths.rbegin(), lengths.rend());
  EXPECT_EQ(spread(rows, lengths, 2, 2), spread(turned, turned_lengths, 2, 2));
}

TEST(Spread, MoreRanksThanRowsLeavesSomeWithout) {
  const std::vector<int64_t> rows = {5, 6}, lengths = {10, 20};
  EXPECT_EQ(spread(rows, lengths, 4, 8), (std::vector<std::vector<MicroBatch>>{{{6}}, {{5}}, {}, {}}));
  EXPECT_EQ(spread({}, {}, 2, 8), (std::vector<std::vector<MicroBatch>>{{}, {}}));
}

TEST(Spread, RefusesNonsense) {
  const std::vector<int64_t> rows = {1}, none;
  EXPECT_THROW(spread(rows, rows, 0, 1), Error);
  EXPECT_THROW(spread(rows, rows, 1, 0), Error);
  EXPECT_THROW(spread(rows, none, 1, 1), Error);
}

}  // namespace
}  // namespace trunkline
