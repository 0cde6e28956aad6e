// Calls that go on while their caller does something else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>

#include "base/clock.h"
#include "comm/ranks_test.h"

namespace trunkline::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

const auto kNoError = Each(Field(&Thrown::text, ""));

TEST(Async, EveryCallGivesWhatItsBlockingFormGives) {
  const auto errors = run_threads(
      3,
      [](Group& group) {
        const size_t count = 40'001;
        const auto size = static_cast<size_t>(group.size());
        std::vector<int32_t> in(count * size), sum(count), max(count), min(count), all(count * size), part(count);
        for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int32_t>(i) * (group.rank() + 1);
        std::vector<int32_t> sent = in, got(count), shared(count, group.rank());
        const int next = (group.rank() + 1) % group.size();
        std::vector<Work> works;
        works.push_back(group.all_sum_async(in.data(), sum.data(), count, Dtype::i32));
        works.push_back(group.all_max_async(in.data(), max.data(), count, Dtype::i32));
        works.push_back(group.all_min_async(in.data(), min.data(), count, Dtype::i32));
        works.push_back(group.all_gather_async(in.data(), all.data(), count, Dtype::i32));
        works.push_back(group.sum_scatter_async(in.data(), part.data(), count, Dtype::i32));
        works.push_back(group.broadcast_async(shared.data(), count, Dtype::i32, 2));
        works.push_back(group.barrier_async());
        if (group.rank() != 1) {
          works.push_back(group.rank() == 0 ? group.send_async(sent.data(), count, Dtype::i32, 2)
                                            : group.recv_async(got.data(), count, Dtype::i32, 0));
        }
        for (Work& each : works) each.wait();
        for (const Work& each : works) EXPECT_TRUE(each.done());
        works.front().wait();  // again
        const size_t last = count - 1;
        const auto value = static_cast<int32_t>(last);
        EXPECT_EQ(sum[last], 6 * value);
        EXPECT_EQ(max[last], 3 * value);
        EXPECT_EQ(min[last], value);
        EXPECT_EQ(all[count * static_cast<size_t>(next) + last], value * (next + 1));
        EXPECT_EQ(part[last], 6 * static_cast<int32_t>(count * static_cast<size_t>(group.rank()) + last));
        EXPECT_EQ(shared[last], 2);
        EXPECT_EQ(got[last], group.rank() == 2 ? value : 0);
      },
      [](Config& config) { config.lanes = 2; });
  EXPECT_THAT(errors, kNoError);
}

TEST(Async, CallsAreServedInTheirOrder) {
  const auto errors = run_threads(2, [](Group& group) {
    const auto other = group.split(0, 0);
    std::vector<float> data(20'000, 1.0f);
    float small = 1;
    for (int round = 0; round < 30; ++round) {
      // The same buffer again: right only in order. The blocking calls wait for those before them.
      for (int i = 0; i < 3; ++i) {
        (i == 1 ? *other : group).all_sum_async(data.data(), data.data(), data.size(), Dtype::f32);
      }
      const float power = std::exp2(static_cast<float>(3 * round + 3));
      group.all_sum(&small, &small, 1, Dtype::f32);
      EXPECT_EQ(data.back(), power);
    }
    EXPECT_EQ(small, std::exp2(30.0f));
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Async, TheCallerGoesOn) {
  std::atomic<bool> released{false};
  const auto errors = run_threads(2, [&](Group& group) {
    group.barrier();
    if (group.rank() == 1) {
      while (!released) std::this_thread::sleep_for(1ms);
    }
    Work work = group.barrier_async();
    if (group.rank() == 0) {
      EXPECT_FALSE(work.done());  // rank 1 waits for what follows
      released = true;
    }
    work.wait();
    EXPECT_TRUE(work.done());
    EXPECT_TRUE(Work().done());
    Work().wait();
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Async, WhatIsStillUnderWayIsFinishedBeforeTheRankLeaves) {
  std::vector<float> data(2 * 100'000, 1.0f);
  const auto errors = run_threads(2, [&](Group& group) {
    float* const own = data.data() + 100'000 * group.rank();
    for (int i = 0; i < 5; ++i) group.all_sum_async(own, own, 100'000, Dtype::f32);
    if (group.rank() == 1) std::this_thread::sleep_for(50ms);
  });
  EXPECT_THAT(errors, kNoError);
  EXPECT_THAT(data, Each(32.0f));
}

TEST(Async, AGroupMayGoBeforeItsCalls) {
  const auto errors = run_threads(3, [](Group& group) {
    std::vector<float> data(100'000, 1.0f);
    {
      const auto part = group.split(0, -group.rank());
      for (int i = 0; i < 3; ++i) part->all_sum_async(data.data(), data.data(), data.size(), Dtype::f32);
    }
    group.barrier();
    EXPECT_THAT(data, Each(27.0f));
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Async, WaitThrowsAndTheJobHasEnded) {
  const auto errors = run_threads(2, [](Group& group) {
    float data[10] = {};
    Work work = group.all_sum_async(data, data, group.rank() == 0 ? 10 : 9, Dtype::f32);
    Work later = group.barrier_async();
    std::string first;
    try {
      work.wait();
    } catch (const Error& error) {
      first = error.what();
    }
    EXPECT_THAT(first, AllOf(HasSubstr("all_sum of 10 float32"), HasSubstr("all_sum of 9 float32")));
    EXPECT_THROW(work.wait(), Error);
    EXPECT_THROW(later.wait(), Error);
    group.barrier();
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::kind, ErrorKind::mismatch)));
}

TEST(Async, AnErrorThatNobodyAsksForEndsTheJobToo) {
  const auto errors = run_threads(
      2,
      [](Group& group) {
        group.barrier();
        if (group.rank() == 0) {
          group.barrier_async();  // rank 1 is late
        } else {
          std::this_thread::sleep_for(1500ms);
        }
        float value = 0;
        group.all_sum(&value, &value, 1, Dtype::f32);
      },
      [](Config& config) { config.timeout = 400ms; });
  EXPECT_THAT(errors, Each(AllOf(Field(&Thrown::kind, ErrorKind::timeout),
                                 Field(&Thrown::text, HasSubstr("no progress for 0.4 s in barrier (operation 2)")))));
}

TEST(Async, AnAdvanceOfTheBusyRankKeepsTheTimeoutAway) {
  const auto errors = run_threads(
      2,
      [](Group& group) {
        Work work = group.rank() == 0 ? group.barrier_async() : Work();
        for (int i = 0; group.rank() == 1 && i < 12; ++i) {
          std::this_thread::sleep_for(100ms);
          group.advance();
        }
        if (group.rank() == 1) group.barrier();
        work.wait();
      },
      [](Config& config) { config.timeout = 600ms; });
  EXPECT_THAT(errors, kNoError);
}

TEST(Async, ArgumentsThatCanNeverWorkAreRefusedAtOnce) {
  const auto errors = run_threads(2, [](Group& group) {
    float data[8] = {};
    EXPECT_THROW(group.all_sum_async(data, data + 1, 4, Dtype::f32), Error);
    EXPECT_THROW(group.send_async(data, 1, Dtype::f32, group.rank()), Error);
    EXPECT_THROW(group.broadcast_async(data, 1, Dtype::f32, 2), Error);
    group.barrier_async().wait();  // and nothing is spoilt
  });
  EXPECT_THAT(errors, kNoError);
}

}  // namespace
}  // namespace trunkline::testing
