// Failures on cables: those of ranks end as they do over TCP; those of single cables cost speed and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/clock.h"
#include "comm/fabric_ranks_test.h"

namespace trunkline::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FabricFailure : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!kHasFabric) GTEST_SKIP() << "no emulated cables here";
  }
};

void sum_forever(Group& group, size_t count, const RankProcess::Ready& ready) {
  std::vector<float> in(count, 1.0f), out(count);
  for (int i = 0;; ++i) {
    group.all_sum(in.data(), out.data(), count, Dtype::f32);
    if (i == 3) ready();
  }
}

// Sums, until rank 0 has had enough time; throws if one is wrong.
void sum_for(Group& group, size_t count, std::chrono::duration<double> time, const RankProcess::Ready& ready) {
  std::vector<float> in(count), out(count);
  const auto start = Clock::now();
  float going_on = 1;
  for (int round = 0; going_on != 0; ++round) {
    if (round == 3) ready();
    std::fill(in.begin(), in.end(), static_cast<float>(group.rank() + round % 100));
    group.all_sum(in.data(), out.data(), count, Dtype::f32);
    const float size = static_cast<float>(group.size());
    const float expected = size * (size - 1) / 2 + size * static_cast<float>(round % 100);
    if (std::count(out.begin(), out.end(), expected) != static_cast<ptrdiff_t>(count)) {
      throw std::runtime_error("wrong sum");
    }
    going_on = group.rank() == 0 && seconds_since(start) < time.count() ? 1 : 0;
    group.broadcast(&going_on, 1, Dtype::f32, 0);
  }
}

void expect_good(std::vector<RankProcess>& ranks) {
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

TEST_F(FabricFailure, AKilledRankIsToldByEverySurvivorWithinSeconds) {
  for (const size_t count : {10, 1'000'000}) {
    const Job job(3);
    const TestFabric fabric("2", 3);
    auto ranks = start_processes(
        job, [&](Group& group, const auto& ready) { sum_forever(group, count, ready); },
        fabric.tweak([](Config& config) { config.lanes = 2; }));
    for (RankProcess& each : ranks) each.await_ready();
    ranks[1].signal(SIGKILL);
    const auto start = Clock::now();
    for (const size_t survivor : {0, 2}) {
      const auto end = ranks[survivor].wait();
      EXPECT_EQ(end.code, 1);
      EXPECT_THAT(end.error, AllOf(HasSubstr("rank 1 (" + host_name() + ") died"),
                                   HasSubstr("its last operation was all_sum of"), HasSubstr("(operation ")));
    }
    EXPECT_LT(seconds_since(start), 5);
  }
}

TEST_F(FabricFailure, ARankStoppedForAWhileIsWaitedFor) {
  const Job job(3);
  const TestFabric fabric("2", 3);
  auto ranks = start_processes(
      job, [](Group& group, const auto& ready) { sum_for(group, 300'000, 6.5s, ready); }, fabric.tweak());
  for (RankProcess& each : ranks) each.await_ready();
  ranks[2].signal(SIGSTOP);
  std::this_thread::sleep_for(5s);
  ranks[2].signal(SIGCONT);
  expect_good(ranks);
}

TEST_F(FabricFailure, DifferentCallsAreOneErrorThatNamesBothSides) {
  for (const int lanes : {1, 2}) {
    const Job job(2);
    const TestFabric fabric("2", 2);
    auto ranks = start_processes(
        job,
        [](Group& group, const auto&) {
          std::vector<float> data(500'000);
          group.barrier();
          group.all_sum(data.data(), data.data(), group.rank() == 0 ? data.size() : 10, Dtype::f32);
        },
        fabric.tweak([&](Config& config) { config.lanes = lanes; }));
    for (RankProcess& each : ranks) {
      EXPECT_THAT(
          each.wait().error,
          AllOf(HasSubstr("rank 0 (" + host_name() + ") called all_sum of 500000 float32 by mesh (operation 2)"),
                HasSubstr("rank 1 (" + host_name() + ") called all_sum of 10 float32 by broadcast")));
    }
  }
}

TEST_F(FabricFailure, ALateRankIsToldFromADeadOne) {
  const Job job(2);
  const TestFabric fabric("1", 2);
  auto ranks = start_processes(
      job,
      [](Group& group, const auto&) {
        group.barrier();
        if (group.rank() == 1) std::this_thread::sleep_for(2500ms);
        group.barrier();
      },
      fabric.tweak([](Config& config) { config.timeout = 1s; }));
  EXPECT_THAT(ranks[0].wait().error, AllOf(HasSubstr("no progress for 1.0 s in barrier (operation 2)"),
                                           HasSubstr("rank 1 (" + host_name() + ") is late, not dead")));
}

TEST_F(FabricFailure, ACutCableCostsSpeedAndIsUsedAgainOnceMended) {
  const Job job(2);
  // So slow that even a busy machine has frames for both.
  const TestFabric fabric("2:gbps=0.3,cut=0-1.1@800,mend=0-1.1@2000", 2);
  auto ranks = start_processes(
      job,
      [](Group& group, const auto&) {
        const auto sent = [&](size_t cable) { return group.cables().at(cable).bytes_sent; };
        const auto nothing = [] {};
        sum_for(group, 300'000, 200ms, nothing);
        if (sent(1) == 0) throw std::runtime_error("both cables are used at first");
        sum_for(group, 300'000, 2s, nothing);  // the cut lies in it, and the mending
        const auto before = sent(1);
        float used_again = 0;
        for (int i = 0; i < 30 && used_again == 0; ++i) {
          sum_for(group, 300'000, 200ms, nothing);
          used_again = sent(1) > before + 1'000'000 ? 1 : 0;
          group.all_min(&used_again, &used_again, 1, Dtype::f32);
        }
        if (used_again == 0) throw std::runtime_error("the mended cable is not used again");
      },
      fabric.tweak());
  expect_good(ranks);
}

TEST_F(FabricFailure, WithoutAnyCableTheJobEndsOrGoesOnOverTcp) {
  for (const bool fallback : {false, true}) {
    const Job job(2);
    const TestFabric fabric("2:gbps=2,cut=0-1.0@300,cut=0-1.1@300", 2);
    auto ranks = start_processes(
        job, [](Group& group, const auto& ready) { sum_for(group, 300'000, 2s, ready); },
        fabric.tweak([&](Config& config) { config.tcp_fallback = fallback; }));
    if (fallback) {
      expect_good(ranks);
      continue;
    }
    const auto start = Clock::now();
    for (RankProcess& each : ranks) {
      EXPECT_THAT(each.wait().error,
                  AllOf(HasSubstr("all cables"), HasSubstr("rank "), HasSubstr("its last operation was")));
    }
    EXPECT_LT(seconds_since(start), 10);
  }
}

// However short the timeout, the ranks at the ends of what is cut say so before another gives up for lack of progress;
// and nobody blames a cable that works.
TEST_F(FabricFailure, APairWithoutCablesIsNamedByEveryRankBeforeTheTimeout) {
  const Job job(3);
  const TestFabric fabric("1:cut=0-1.0@300", 3);
  auto ranks = start_processes(
      job, [](Group& group, const auto& ready) { sum_forever(group, 1000, ready); },
      fabric.tweak([](Config& config) { config.timeout = 4s; }));
  for (RankProcess& each : ranks) {
    EXPECT_THAT(each.wait().error, AllOf(HasSubstr("rank 0 ("), HasSubstr("rank 1 ("), HasSubstr("all cables are cut"),
                                         Not(HasSubstr("rank 2 ("))));
  }
}

TEST_F(FabricFailure, ARingOfCablesIsUsedWhereSomePairHasNone) {
  Wiring wiring;
  wiring.ranks = 4;
  int devices[4] = {};
  for (const auto& [a, b] : {std::pair{0, 1}, {1, 2}, {2, 3}, {3, 0}}) {
    for (int i = 0; i < 2; ++i) {
      Cable cable;
      cable.ends[0] = {a, fmt::format("rdma_en{}", 2 + devices[a]++)};
      cable.ends[1] = {b, fmt::format("rdma_en{}", 2 + devices[b]++)};
      wiring.cables.push_back(cable);
    }
  }
  complete_wiring(wiring, "test");
  const Job job(4);
  const TestFabric fabric(wiring);
  auto ranks = start_processes(
      job,
      [](Group& group, const auto& ready) {
        sum_for(group, 200'000, 100ms, ready);
        float value = static_cast<float>(group.rank());
        std::vector<float> all(4);
        group.all_gather(&value, all.data(), 1, Dtype::f32);
        if (all != std::vector<float>{0, 1, 2, 3}) throw std::runtime_error("wrong gather");
        std::vector<float> parts(400'000, 1.0f), part(100'000);
        group.sum_scatter(parts.data(), part.data(), part.size(), Dtype::f32);
        if (part.back() != 4) throw std::runtime_error("wrong scatter");
        group.barrier();
        if (group.rank() == 0) group.send(&value, 1, Dtype::f32, 2);
      },
      fabric.tweak());
  EXPECT_THAT(ranks[0].wait().error, HasSubstr("send: there is no cable between rank 0 (" + host_name() +
                                               ") and rank 2 (" + host_name() + ")"));
  for (const size_t rank : {1, 2, 3}) EXPECT_EQ(ranks[rank].wait().code, 0);
}

}  // namespace
}  // namespace trunkline::testing
