#include "train/sequences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"

namespace trunkline {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

TEST(Pack, LongestFirstIntoTheFullestThatHasRoom) {
  EXPECT_EQ(pack(std::vector<int64_t>{3, 8, 5, 2, 7}, 10), (Rows{{1, 3}, {4, 0}, {2}}));
  EXPECT_EQ(pack(std::vector<int64_t>{4, 4, 4}, 8), (Rows{{0, 1}, {2}}));  // of equals, the earlier row first
  EXPECT_EQ(pack(std::vector<int64_t>{20, 3}, 8), (Rows{{0}, {1}}));       // too long: alone
  EXPECT_TRUE(pack({}, 8).empty());
}

TEST(Pack, UsesEveryRowOnceAndFewSequences) {
  Random random(5);
  for (const int64_t most : {int64_t{16}, int64_t{100}, int64_t{2048}}) {
    std::vector<int64_t> lengths;
    for (int i = 0; i < 3000; ++i) {
      lengths.push_back(2 + static_cast<int64_t>(random.below(static_cast<uint64_t>(most) - 1)));
    }
    std::vector<int> used(lengths.size(), 0);
    const Rows sequences = pack(lengths, most);
    for (const auto& rows : sequences) {
      int64_t tokens = 0;
      for (const int64_t row : rows) {
        ++used[static_cast<size_t>(row)];
        tokens += lengths[static_cast<size_t>(row)];
      }
      EXPECT_LE(tokens, most);
    }
    EXPECT_TRUE(std::ranges::all_of(used, [](int times) { return times == 1; }));
    const auto total = static_cast<double>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
    EXPECT_LT(static_cast<double>(sequences.size()), 1 + 11.0 / 9 * total / static_cast<double>(most));
  }
}

}  // namespace
}  // namespace trunkline
