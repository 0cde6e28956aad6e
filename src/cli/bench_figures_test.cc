#include "cli/bench_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace trunkline {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(BenchFigures, SizesAreReadAsNcclTestsReadsThem) {
  EXPECT_EQ(size_from("0"), 0u);
  EXPECT_EQ(size_from("1"), 1u);
  EXPECT_EQ(size_from("32K"), 32768u);
  EXPECT_EQ(size_from("3m"), 3u << 20);
  EXPECT_EQ(size_from("1G"), 1u << 30);
  EXPECT_EQ(size_from("5000000000"), 5'000'000'000u);
  for (const char* text : {"", "K", "-1", "1.5M", "1KB", "1T", " 1", "1 ", "18446744073709551616", "20000000000G"}) {
    EXPECT_EQ(size_from(text), std::nullopt) << text;
  }
}

TEST(BenchFigures, SizesGoFromMinToMaxByFactor) {
  EXPECT_THAT(sizes_between(1, 9, 2), ElementsAre(1, 2, 4, 8));
  EXPECT_THAT(sizes_between(1024, 1024, 2), ElementsAre(1024));
  EXPECT_THAT(sizes_between(5, 200, 10), ElementsAre(5, 50));
  EXPECT_THAT(sizes_between(0, 4, 2), ElementsAre(0, 1, 2, 4));
  EXPECT_THAT(sizes_between(0, 0, 2), ElementsAre(0));
  EXPECT_THAT(sizes_between(2, 1, 2), IsEmpty());
  EXPECT_THAT(sizes_by_step(0, 10, 4), ElementsAre(0, 4, 8));
  EXPECT_THAT(sizes_by_step(3, 2, 1), IsEmpty());
  const size_t most = std::numeric_limits<size_t>::max();
  EXPECT_THAT(sizes_between(most / 2, most, 3), ElementsAre(most / 2));  // no overflow
  EXPECT_THAT(sizes_by_step(most - 1, most, 3), ElementsAre(most - 1));
}

TEST(BenchFigures, IncompleteElementsAreLeftOut) {
  const Message whole = message_of(Collective::allreduce, 11, Dtype::f32, 3);
  EXPECT_EQ(whole.count, 2u);
  EXPECT_EQ(whole.bytes, 8u);
  EXPECT_EQ(message_of(Collective::broadcast, 7, Dtype::i64, 2).count, 0u);
}

TEST(BenchFigures, EveryRankHasTheSamePartOfAGather) {
  for (const Collective collective : {Collective::allgather, Collective::reducescatter}) {
    const Message message = message_of(collective, 1024, Dtype::f32, 3);
    EXPECT_EQ(message.count, 85u);
    EXPECT_EQ(message.bytes, 1020u);
  }
}

TEST(BenchFigures, PercentilesAreSamples) {
  std::vector<double> samples(200);
  for (size_t i = 0; i < samples.size(); ++i) samples[i] = static_cast<double>(200 - i);
  const Times times = times_of(samples);
  EXPECT_DOUBLE_EQ(times.mean, 100.5);
  EXPECT_EQ(times.p50, 100);
  EXPECT_EQ(times.p99, 198);
  const double one[] = {3};
  EXPECT_EQ(times_of(one).p99, 3);
}

TEST(BenchFigures, BandwidthsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1000, 1e-3), 1e6);
  EXPECT_EQ(algorithm_bandwidth(0, 0), 0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, 2), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::allreduce, 1), 0);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::allgather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reducescatter, 2), 0.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 4), 1);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::sendrecv, 4), 1);
}

}  // namespace
}  // namespace trunkline
