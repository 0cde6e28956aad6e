// Groups within a job.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "comm/ranks_test.h"

namespace trunkline::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

const auto kNoError = Each(Field(&Thrown::text, ""));

float sum_in(Group& group, float value) {
  group.all_sum(&value, &value, 1, Dtype::f32);
  return value;
}

class Split : public ::testing::TestWithParam<Algorithm> {
 protected:
  static void tweak(Config& config) {
    config.lanes = 2;
    config.algorithm = GetParam();
  }
};

TEST_P(Split, SameColorsTogetherOrderedByKeyThenRank) {
  const auto errors = run_threads(
      6,
      [](Group& group) {
        // Colors 0, 1, 0, 1, ...; keys fall, but are the same for ranks 2 and 4.
        const int key = group.rank() == 4 ? -2 : -group.rank();
        const auto half = group.split(group.rank() % 2, key);
        ASSERT_NE(half, nullptr);
        EXPECT_EQ(half->size(), 3);
        const int expected[] = {2, 2, 0, 1, 1, 0};
        EXPECT_EQ(half->rank(), expected[group.rank()]);
        EXPECT_EQ(half->host_of(half->rank()), group.host_of(group.rank()));
        EXPECT_EQ(sum_in(*half, static_cast<float>(group.rank())), group.rank() % 2 == 0 ? 6 : 9);

        std::vector<int32_t> ranks(3);
        const int32_t own = group.rank();
        half->all_gather(&own, ranks.data(), 1, Dtype::i32);
        EXPECT_EQ(ranks, group.rank() % 2 == 0 ? (std::vector<int32_t>{2, 4, 0}) : (std::vector<int32_t>{5, 3, 1}));

        // The ranks of sends, receives and broadcasts are places in the group.
        int32_t value = own;
        if (half->rank() == 0) half->send(&value, 1, Dtype::i32, 2);
        if (half->rank() == 2) half->recv(&value, 1, Dtype::i32, 0);
        EXPECT_EQ(value, half->rank() == 2 ? ranks[0] : own);
        value = own;
        half->broadcast(&value, 1, Dtype::i32, 1);
        EXPECT_EQ(value, ranks[1]);

        std::vector<float> in(300'000), out(100'000);
        std::iota(in.begin(), in.end(), 0.0f);
        half->sum_scatter(in.data(), out.data(), out.size(), Dtype::f32);
        EXPECT_EQ(out[7], 3 * (100'000.0f * static_cast<float>(half->rank()) + 7));
        half->barrier();
      },
      tweak);
  EXPECT_THAT(errors, kNoError);
}

TEST_P(Split, ANegativeColorIsNoGroup) {
  const auto errors = run_threads(
      4,
      [](Group& group) {
        const auto some = group.split(group.rank() == 2 ? -1 : 5, 0);
        EXPECT_EQ(some == nullptr, group.rank() == 2);
        EXPECT_EQ(some ? sum_in(*some, static_cast<float>(group.rank())) : 4, 4);
        const auto alone = group.split(group.rank(), 0);
        EXPECT_EQ(alone->size(), 1);
        EXPECT_EQ(sum_in(*alone, 3), 3);
        EXPECT_EQ(sum_in(group, 1), 4);
      },
      tweak);
  EXPECT_THAT(errors, kNoError);
}

TEST_P(Split, GroupsOfGroupsInterleave) {
  const auto errors = run_threads(
      4,
      [](Group& group) {
        const auto rows = group.split(group.rank() / 2, group.rank());
        const auto columns = group.split(group.rank() % 2, group.rank());
        const auto back = columns->split(0, -columns->rank());
        std::vector<float> data(50'000);
        for (int round = 0; round < 20; ++round) {
          const float own = static_cast<float>(1 << group.rank());
          EXPECT_EQ(sum_in(*rows, own), group.rank() < 2 ? 3 : 12);
          EXPECT_EQ(sum_in(*columns, own), group.rank() % 2 == 0 ? 5 : 10);
          EXPECT_EQ(sum_in(*back, own), group.rank() % 2 == 0 ? 5 : 10);
          std::fill(data.begin(), data.end(), own);
          (round % 2 == 0 ? *rows : group).all_sum(data.data(), data.data(), data.size(), Dtype::f32);
          EXPECT_EQ(data.back(), round % 2 != 0 ? 15 : group.rank() < 2 ? 3 : 12);
        }
      },
      tweak);
  EXPECT_THAT(errors, kNoError);
}

INSTANTIATE_TEST_SUITE_P(, Split,
                         ::testing::Values(Algorithm::automatic, Algorithm::mesh, Algorithm::broadcast,
                                           Algorithm::ring),
                         [](const auto& test) { return std::string(text_of(test.param)); });

TEST(SplitFailure, CallsInDifferentGroupsAreAMismatchThatNamesBoth) {
  const auto errors = run_threads(2, [](Group& group) {
    const auto first = group.split(0, 0);
    const auto second = group.split(0, 0);
    sum_in(*(group.rank() == 0 ? first : second), 1);
  });
  EXPECT_THAT(
      errors,
      Each(AllOf(Field(&Thrown::kind, ErrorKind::mismatch),
                 Field(&Thrown::text,
                       AllOf(HasSubstr("rank 0 (" + host_name() +
                                       ") called all_sum of 1 float32 by broadcast (operation 1 of group 1)"),
                             HasSubstr("rank 1 (" + host_name() +
                                       ") called all_sum of 1 float32 by broadcast (operation 1 of group 2)"))))));
}

TEST(SplitFailure, AGroupAndTheWholeJobAreAMismatch) {
  const auto errors = run_threads(2, [](Group& group) {
    const auto pair = group.split(0, -group.rank());
    float value = 0;
    if (group.rank() == 0) return group.send(&value, 1, Dtype::f32, 1);
    pair->recv(&value, 1, Dtype::f32, 1);  // rank 0 of the job
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, AllOf(HasSubstr("send to rank 1 of 1 float32 (transfer 1)"),
                                                      HasSubstr("recv from place 1 of 1 float32 "
                                                                "(transfer 1 of group 1)")))));
}

TEST(SplitFailure, MessagesNameTheRankOfTheJob) {
  const auto errors = run_threads(
      3,
      [](Group& group) {
        const auto pair = group.split(group.rank() == 0 ? 0 : 1, -group.rank());
        if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
        pair->barrier();  // of ranks 2 and 1
        group.barrier();
      },
      [](Config& config) { config.timeout = std::chrono::milliseconds(500); });
  EXPECT_THAT(errors[1].text,
              AllOf(HasSubstr("rank 2 (" + host_name() + ") is late"), HasSubstr("last one was all_gather")));
}

TEST(SplitFailure, AnErrorInOneGroupEndsTheJob) {
  const auto errors = run_threads(4, [](Group& group) {
    const auto half = group.split(group.rank() / 2, 0);
    if (group.rank() == 3) half->abort("no more");
    half->barrier();
    group.barrier();
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, "rank 3 (" + host_name() + ") failed: no more")));
}

}  // namespace
}  // namespace trunkline::testing
