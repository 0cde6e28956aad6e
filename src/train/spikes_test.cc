#include "train/spikes.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trunkline {
namespace {

TEST(SpikeWatch, ASpikeLiesFarAboveTheWindow) {
  SpikeWatch watch(3.0, 4);
  for (const double value : {1.0, 2.0, 3.0, 2.0}) {
    EXPECT_FALSE(watch.take(value));
    EXPECT_TRUE(std::isnan(watch.score()));  // the window is not full yet
  }
  EXPECT_FALSE(watch.take(4.0));  // mean 2, deviation sqrt(1/2)
  EXPECT_NEAR(watch.score(), 2.0 * std::sqrt(2.0), 1e-12);
  EXPECT_FALSE(watch.take(-100.0));  // far below is none
  EXPECT_TRUE(watch.take(1000.0) == (watch.score() > 3.0));
}

TEST(SpikeWatch, ALevelThatStaysIsSoonNone) {
  SpikeWatch watch(2.0, 8);
  for (int i = 0; i < 8; ++i) watch.take(i % 2);
  EXPECT_TRUE(watch.take(50.0));
  int spikes = 0;
  for (int i = 0; i < 8; ++i) spikes += watch.take(50.0 + i % 2) ? 1 : 0;
  EXPECT_LE(spikes, 1);
}

TEST(SpikeWatch, GoesOnFromItsValues) {
  SpikeWatch watch(1.0, 3), other(1.0, 3);
  for (const double value : {5.0, 1.0, 2.0, 1.0 / 3.0}) watch.take(value);
  EXPECT_EQ(watch.values(), (std::vector<double>{1.0, 2.0, 1.0 / 3.0}));
  other.restore(watch.values());
  for (const double value : {2.5, 0.1, 7.0}) {
    EXPECT_EQ(watch.take(value), other.take(value));
    EXPECT_EQ(watch.score(), other.score());
  }
}

TEST(SpikeWatch, OffOrLevelThereIsNone) {
  SpikeWatch off(0.0, 2), level(1.0, 2);
  EXPECT_FALSE(off.on());
  for (const double value : {1.0, 2.0, 100.0}) EXPECT_FALSE(off.take(value));
  for (const double value : {1.0, 1.0, 100.0}) EXPECT_FALSE(level.take(value));
}

}  // namespace
}  // namespace trunkline
