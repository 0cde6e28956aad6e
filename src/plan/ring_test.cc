#include "plan/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace trunkline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

Paths wired(size_t ranks, const std::vector<std::pair<size_t, size_t>>& pairs) {
  Paths paths(ranks, std::vector<size_t>(ranks, 0));
  for (const auto& [a, b] : pairs) paths[a][b] = paths[b][a] = 2;
  return paths;
}

TEST(Ring, TheNaturalOrderWhereItIsOne) {
  EXPECT_THAT(ring_order(all_paths(1)), ElementsAre(0));
  EXPECT_THAT(ring_order(all_paths(2)), ElementsAre(0, 1));
  EXPECT_THAT(ring_order(all_paths(5)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(ring_order(wired(4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}})), ElementsAre(0, 1, 2, 3));
}

TEST(Ring, AnyOrderThatThePathsAllow) {
  EXPECT_THAT(ring_order(wired(4, {{0, 2}, {2, 1}, {1, 3}, {3, 0}})), ElementsAre(0, 2, 1, 3));
  // One pair of five has none.
  Paths paths = all_paths(5);
  paths[1][2] = paths[2][1] = 0;
  EXPECT_THAT(ring_order(paths), ElementsAre(0, 1, 3, 4, 2));
}

TEST(Ring, NoneOnALineOrAStarOrInTwoParts) {
  EXPECT_THAT(ring_order(wired(3, {{0, 1}, {1, 2}})), IsEmpty());
  EXPECT_THAT(ring_order(wired(4, {{0, 1}, {0, 2}, {0, 3}})), IsEmpty());
  EXPECT_THAT(ring_order(wired(6, {{0, 1}, {1, 2}, {2, 0}, {3, 4}, {4, 5}, {5, 3}})), IsEmpty());
  EXPECT_THAT(ring_order(wired(2, {})), IsEmpty());
}

TEST(Ring, TheSearchEnds) {
  // Two halves, each complete, joined by one pair: a search without a bound would try some 19! orders.
  Paths paths(40, std::vector<size_t>(40, 0));
  for (size_t a = 0; a < 40; ++a) {
    for (size_t b = 0; b < 40; ++b) paths[a][b] = a != b && a / 20 == b / 20 ? 1 : 0;
  }
  paths[3][25] = paths[25][3] = 1;
  EXPECT_THAT(ring_order(paths), IsEmpty());
}

TEST(Ring, PairsWithoutAPath) {
  EXPECT_THAT(missing_pairs(all_paths(4)), IsEmpty());
  const Paths ring = wired(4, {{0, 1}, {1, 2}, {2, 3}, {3, 0}});
  EXPECT_THAT(missing_pairs(ring), ElementsAre(Pair(0, 2), Pair(1, 3)));
  EXPECT_THAT(missing_pairs(paths_among(ring, {3, 1, 2})), ElementsAre(Pair(0, 1)));
  EXPECT_EQ(fewest_cables(ring), 2u);
  EXPECT_EQ(fewest_cables(all_paths(1)), 1u);
}

}  // namespace
}  // namespace trunkline
