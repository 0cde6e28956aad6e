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
  EXPECT_EQ(lanes_for(kSmallMessage, 4), 4u);
  EXPECT_EQ(lanes_for(kSmallMessage, 10), 8u);
}

TEST(Collectives, LanesNeedCores) {
  EXPECT_EQ(default_lanes(2, 2), 1);
  EXPECT_EQ(default_lanes(1, 8), 1);
  EXPECT_EQ(default_lanes(16, 2), 4);
  EXPECT_EQ(default_lanes(128, 1), 4);
}

TEST(Collectives, BroadcastIsForSmallMessagesAndFewRanks) {
  EXPECT_TRUE(prefers_broadcast(2, 4096));
  EXPECT_TRUE(prefers_broadcast(2, 256 * 1024));
  EXPECT_FALSE(prefers_broadcast(2, 1 << 20));
  EXPECT_FALSE(prefers_broadcast(4, 256 * 1024));
  EXPECT_TRUE(prefers_broadcast(8, 1024));
}

}  // namespace
}  // namespace trunkline
