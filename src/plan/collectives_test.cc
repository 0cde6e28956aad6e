#include "plan/collectives.h"

#include <gtest/gtest.h>

namespace trunkline {
namespace {

TEST(Collectives, PartsCoverTheMessageInUnits) {
  for (const size_t bytes : {0, 1, 4095, 4096, 4097, 40'000, 1'000'003}) {
    for (const size_t count : {1, 2, 3, 7, 10}) {
      size_t end = 0;
      for (size_t i = 0; i < count; ++i) {
        const Range part = part_of(bytes, count, i);
        EXPECT_EQ(part.begin, end);
        EXPECT_TRUE(part.begin % kMessageUnit == 0 || part.size() == 0);
        EXPECT_LE(part.size(), (bytes / kMessageUnit / count + 1) * kMessageUnit);
        end = part.end;
      }
      EXPECT_EQ(end, bytes);
    }
  }
}

TEST(Collectives, ASmallMessageIsOneStripe) {
  EXPECT_EQ(lanes_for(0, 4), 1u);
  EXPECT_EQ(lanes_for(kSmallMessage - 1, 4), 1u);
  EXPECT_EQ(lanes_for(kSmallMessage, 4), 2u);
  EXPECT_EQ(lanes_for(2 * kSmallMessage, 10), 4u);
  EXPECT_EQ(lanes_for(100 * kSmallMessage, 10), 10u);
  EXPECT_EQ(lanes_for(8192, 4, 8192), 2u);
  EXPECT_EQ(lanes_for(kSmallMessage, 4, 1 << 20), 1u);
}

TEST(Collectives, LanesNeedCores) {
  EXPECT_EQ(default_lanes(2, 2), 1);
  EXPECT_EQ(default_lanes(1, 8), 1);
  EXPECT_EQ(default_lanes(16, 2), 4);
  EXPECT_EQ(default_lanes(128, 1), 4);
}

Algorithm chosen(size_t ranks, size_t bytes, size_t cables = 1) {
  return all_reduce_algorithm(ranks, bytes, cables, true);
}

TEST(Collectives, BroadcastIsForSmallMessagesAndFewRanks) {
  EXPECT_EQ(chosen(2, 4096), Algorithm::broadcast);
  EXPECT_EQ(chosen(2, 256 * 1024), Algorithm::broadcast);
  EXPECT_EQ(chosen(2, 1 << 20), Algorithm::mesh);
  EXPECT_EQ(chosen(4, 16 * 1024), Algorithm::broadcast);
  EXPECT_EQ(chosen(4, 256 * 1024), Algorithm::mesh);
  EXPECT_EQ(chosen(8, 1024), Algorithm::broadcast);
  EXPECT_EQ(chosen(8, 64 * 1024), Algorithm::mesh);
  // There is one border for each number of ranks.
  for (const size_t ranks : {2, 3, 4, 8, 16}) {
    bool mesh = false;
    for (size_t bytes = 0; bytes < (64 << 20); bytes = bytes * 2 + 64) {
      const bool now = chosen(ranks, bytes) == Algorithm::mesh;
      EXPECT_TRUE(now || !mesh) << ranks << " ranks, " << bytes << " bytes";
      mesh = now;
    }
    EXPECT_TRUE(mesh);
  }
}

TEST(Collectives, ARingOnlyWhereAPairHasNoPath) {
  for (const size_t bytes : {0, 1000, 1 << 20, 1 << 30}) {
    EXPECT_EQ(all_reduce_algorithm(4, bytes, 1, false), Algorithm::ring);
    EXPECT_NE(all_reduce_algorithm(4, bytes, 1, true), Algorithm::ring);
  }
}

TEST(Collectives, CostsGrowWithBytesAndFallWithCables) {
  for (const Algorithm algorithm : {Algorithm::mesh, Algorithm::broadcast, Algorithm::ring}) {
    EXPECT_LT(all_reduce_seconds(algorithm, 4, 1 << 20, 2), all_reduce_seconds(algorithm, 4, 2 << 20, 2));
    EXPECT_LT(all_reduce_seconds(algorithm, 4, 1 << 20, 2), all_reduce_seconds(algorithm, 4, 1 << 20, 1));
  }
  // What a mesh of three gains over a ring of three in steps, it loses nowhere.
  EXPECT_LT(all_reduce_seconds(Algorithm::mesh, 3, 64 << 20, 3), all_reduce_seconds(Algorithm::ring, 3, 64 << 20, 3));
}

}  // namespace
}  // namespace trunkline
