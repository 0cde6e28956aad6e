// Values: every collective, with ranks as threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <tuple>

#include "base/clock.h"
#include "comm/ranks_test.h"
#include "comm/values_test.h"
#include "plan/collectives.h"

namespace trunkline::testing {
namespace {

void all_reduce(Group& group, Reduction reduction, const void* in, void* out, size_t count, Dtype dtype) {
  switch (reduction) {
    case Reduction::sum: return group.all_sum(in, out, count, dtype);
    case Reduction::max: return group.all_max(in, out, count, dtype);
    case Reduction::min: return group.all_min(in, out, count, dtype);
  }
}

class Values : public ::testing::TestWithParam<std::tuple<int, int, Algorithm>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }

  int lanes() const { return std::get<1>(GetParam()); }
  Algorithm algorithm() const { return ranks() == 1 ? Algorithm::mesh : std::get<2>(GetParam()); }

  void run(const std::function<void(Group&)>& body) { run(lanes(), body); }
  void run(int lanes, const std::function<void(Group&)>& body) {
    const auto errors = run_threads(ranks(), body, [lanes](Config& config) {
      config.lanes = lanes;
      config.algorithm = std::get<2>(GetParam());
    });
    EXPECT_THAT(errors, ::testing::Each(::testing::Field(&Thrown::text, "")));
  }
};

// Nothing, one element, odd ones, below and above what one stripe, block or frame takes.
const size_t kCounts[] = {0, 1, 3, 1000, 1025, 16387, 70001};

TEST_P(Values, AllReduceOfEveryDtype) {
  run([&](Group& group) {
    for (const Dtype dtype : kAllDtypes) {
      for (const Reduction reduction : kReductions) {
        for (const size_t count : kCounts) {
          const Case& values = case_of(ranks(), count, dtype);
          const Buffer& expected = values.of(algorithm(), reduction);
          const Buffer& in = values.inputs[static_cast<size_t>(group.rank())];
          // Not in place, at an odd address; then in place.
          Buffer out(in.size() + 1);
          all_reduce(group, reduction, in.data(), out.data() + 1, count, dtype);
          out.erase(out.begin());
          ASSERT_EQ(out, expected) << name_of(dtype) << " " << count;
          Buffer both = in;
          all_reduce(group, reduction, both.data(), both.data(), count, dtype);
          ASSERT_EQ(both, expected) << name_of(dtype) << " " << count << " in place";
        }
      }
    }
  });
}

TEST_P(Values, SeveralFramesOnAnyNumberOfLanes) {
  for (const int lanes_now : {lanes(), lanes() + 1}) {
    run(lanes_now, [&](Group& group) {
      const size_t count = 5 * kFrameBytes / 4 * static_cast<size_t>(ranks()) + 13;
      const Case& values = case_of(ranks(), count, Dtype::f32);
      const Buffer& expected = values.of(algorithm(), Reduction::sum);
      Buffer both = values.inputs[static_cast<size_t>(group.rank())];
      Buffer out(both.size());
      group.all_sum(both.data(), out.data(), count, Dtype::f32);
      EXPECT_TRUE(out == expected);
      group.all_sum(both.data(), both.data(), count, Dtype::f32);
      EXPECT_TRUE(both == expected);
    });
  }
}

TEST_P(Values, AllGather) {
  run([&](Group& group) {
    for (const Dtype dtype : {Dtype::u8, Dtype::bf16, Dtype::i64}) {
      for (const size_t count : kCounts) {
        const auto& inputs = case_of(ranks(), count, dtype).inputs;
        Buffer expected;
        for (const Buffer& each : inputs) expected.insert(expected.end(), each.begin(), each.end());
        const Buffer& in = inputs[static_cast<size_t>(group.rank())];
        Buffer out(expected.size());
        group.all_gather(in.data(), out.data(), count, dtype);
        ASSERT_EQ(out, expected) << count;
        // In place: at the beginning, and in this rank's block.
        Buffer first(expected.size());
        std::copy(in.begin(), in.end(), first.begin());
        group.all_gather(first.data(), first.data(), count, dtype);
        ASSERT_EQ(first, expected) << count;
        Buffer block(expected.size());
        std::byte* const own = block.data() + in.size() * static_cast<size_t>(group.rank());
        std::copy(in.begin(), in.end(), own);
        group.all_gather(own, block.data(), count, dtype);
        ASSERT_EQ(block, expected) << count;
      }
    }
  });
}

TEST_P(Values, SumScatter) {
  run([&](Group& group) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::i16}) {
      for (const size_t count : kCounts) {
        const Case& values = case_of(ranks(), count * static_cast<size_t>(ranks()), dtype);
        const Buffer& all = values.scattered(algorithm());
        const size_t block = count * size_of(dtype);
        const auto begin = all.begin() + static_cast<ptrdiff_t>(block) * group.rank();
        const Buffer expected(begin, begin + static_cast<ptrdiff_t>(block));
        Buffer in = values.inputs[static_cast<size_t>(group.rank())];
        Buffer out(block);
        group.sum_scatter(in.data(), out.data(), count, dtype);
        ASSERT_EQ(out, expected) << count;
        group.sum_scatter(in.data(), in.data(), count, dtype);
        in.resize(block);
        ASSERT_EQ(in, expected) << count << " in place";
      }
    }
  });
}

TEST_P(Values, BroadcastFromEveryRank) {
  run([&](Group& group) {
    for (int root = 0; root < ranks(); ++root) {
      for (const size_t count : kCounts) {
        const Buffer expected = input_of(root, count, Dtype::u16);
        Buffer data = input_of(group.rank(), count, Dtype::u16);
        group.broadcast(data.data(), count, Dtype::u16, root);
        ASSERT_EQ(data, expected) << count;
      }
    }
  });
}

TEST_P(Values, SendAndReceive) {
  run([&](Group& group) {
    for (const size_t count : kCounts) {
      // Every rank sends to every other, in an order that all agree on.
      for (int from = 0; from < ranks(); ++from) {
        for (int to = 0; to < ranks(); ++to) {
          if (from == to) continue;
          const Buffer expected = input_of(from, count, Dtype::f32);
          if (group.rank() == from) group.send(expected.data(), count, Dtype::f32, to);
          if (group.rank() != to) continue;
          Buffer data(expected.size());
          group.recv(data.data(), count, Dtype::f32, from);
          ASSERT_EQ(data, expected) << count;
        }
      }
    }
  });
}

TEST_P(Values, BarrierHoldsEveryoneUntilTheLast) {
  std::atomic<int> arrived{0};
  run([&](Group& group) {
    for (int round = 1; round <= 20; ++round) {
      ++arrived;
      group.barrier();
      EXPECT_GE(arrived, round * ranks());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(, Values,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5), ::testing::Values(1, 3),
                                            ::testing::Values(Algorithm::mesh, Algorithm::broadcast, Algorithm::ring)),
                         [](const auto& test) {
                           return std::to_string(std::get<0>(test.param)) + "Ranks" +
                                  std::to_string(std::get<1>(test.param)) + "Lanes" + text_of(std::get<2>(test.param));
                         });

TEST(Figures, CablesCountThePayload) {
  const auto errors = run_threads(
      3,
      [](Group& group) {
        const size_t count = 100'000;
        std::vector<float> in(count, 1.0f), all(3 * count);
        group.all_gather(in.data(), all.data(), count, Dtype::f32);
        const auto cables = group.cables();
        ASSERT_EQ(cables.size(), 2u);
        for (const CableTraffic& cable : cables) {
          EXPECT_EQ(cable.id, "tcp");
          EXPECT_NE(cable.peer, group.rank());
          EXPECT_EQ(cable.bytes_sent, count * sizeof(float));
          EXPECT_EQ(cable.bytes_received, count * sizeof(float));
          EXPECT_TRUE(cable.working);
        }
      },
      [](Config& config) { config.lanes = 2; });
  EXPECT_THAT(errors, ::testing::Each(::testing::Field(&Thrown::text, "")));
}

double sum_of(const Profile& profile) {
  return profile.verbs + profile.copy + profile.reduce + profile.checksum + profile.protocol + profile.idle;
}

TEST(Figures, TheProfileAddsUpToTheTimeInCollectives) {
  const auto errors = run_threads(
      2,
      [](Group& group) {
        std::vector<float> data(1'000'000, 1.0f);
        const auto work = [&] {
          const auto start = Clock::now();
          for (int i = 0; i < 10; ++i) group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
          for (int i = 0; i < 200; ++i) group.barrier();
          return seconds_since(start);
        };
        work();
        EXPECT_EQ(sum_of(group.profile()), 0);  // it was off
        for (int round = 0; round < 2; ++round) {
          const double seconds = work();
          std::this_thread::sleep_for(std::chrono::milliseconds(30));  // outside of any call: not counted
          const Profile profile = group.profile();
          EXPECT_NEAR(sum_of(profile), seconds, 0.05 * seconds + 0.01);
          EXPECT_GT(profile.verbs, 0);
          EXPECT_GT(profile.reduce, 0);
          EXPECT_GT(profile.protocol, 0);
          EXPECT_GT(profile.idle, 0);
        }
      },
      [](Config& config) { config.lanes = 3; });
  EXPECT_THAT(errors, ::testing::Each(::testing::Field(&Thrown::text, "")));
}

TEST(Figures, LanesTellWhenTheyWorked) {
  const auto errors = run_threads(
      2,
      [](Group& group) {
        std::vector<float> data(1'000'000, 1.0f);
        EXPECT_TRUE(group.lane_spans().empty());
        const auto start = Clock::now();
        group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
        group.barrier();  // of one lane
        const auto end = Clock::now();
        std::vector<int> calls(3);
        for (const LaneSpan& span : group.lane_spans()) {
          ++calls.at(static_cast<size_t>(span.lane));
          EXPECT_LE(start, span.start);
          EXPECT_LT(span.start, span.end);
          EXPECT_LE(span.end, end);
        }
        EXPECT_THAT(calls, ::testing::ElementsAre(2, 1, 1));
        EXPECT_TRUE(group.lane_spans().empty());
      },
      [](Config& config) {
        config.lanes = 3;
        config.trunking_from = 1 << 20;
      });
  EXPECT_THAT(errors, ::testing::Each(::testing::Field(&Thrown::text, "")));
}

}  // namespace
}  // namespace trunkline::testing
