// Which threads drive the lanes, and that they sleep.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <filesystem>
#include <optional>

#include "base/clock.h"
#include "comm/fabric_ranks_test.h"
#include "comm/values_test.h"

namespace trunkline::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

double processor_seconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

size_t threads_of_this_process() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

void require(bool condition, const std::string& what) {
  if (!condition) throw std::runtime_error(what);
}

using Body = std::function<void(Group&)>;

// Ranks as processes: over TCP, or on cables.
void expect_good(const char* cables, int size, const Body& body, const Tweak& tweak) {
  const Job job(size);
  std::optional<TestFabric> fabric;
  if (cables != nullptr) fabric.emplace(cables, size);
  auto ranks = start_processes(
      job, [&](Group& group, const auto&) { body(group); }, fabric ? fabric->tweak(tweak) : tweak);
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

class WorkersOn : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (GetParam() != nullptr && !kHasFabric) GTEST_SKIP() << "no emulated cables here";
  }
};

TEST_P(WorkersOn, EveryWayGivesTheSame) {
  for (const Workers workers : {Workers::pool, Workers::per_call, Workers::single}) {
    expect_good(
        GetParam(), 3,
        [](Group& group) {
          for (const size_t count : {1, 100'003}) {
            const Case& values = case_of(group.size(), count, Dtype::f32);
            Buffer data = values.inputs[static_cast<size_t>(group.rank())];
            group.all_sum(data.data(), data.data(), count, Dtype::f32);
            require(data == values.of(Algorithm::mesh, Reduction::sum), "other bits");
          }
          group.barrier();
        },
        [&](Config& config) {
          config.workers = workers;
          config.lanes = workers == Workers::single ? 0 : 3;
        });
  }
}

TEST_P(WorkersOn, AnIdleJobUsesUnderOnePercentOfACore) {
  expect_good(
      GetParam(), 2,
      [](Group& group) {
        std::vector<float> data(1'000'000, 1.0f);
        for (int i = 0; i < 5; ++i) group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
        group.all_sum_async(data.data(), data.data(), 1, Dtype::f32).wait();  // its thread sleeps, too
        group.barrier();
        std::this_thread::sleep_for(200ms);  // what may still have to be answered
        const double before = processor_seconds();
        std::this_thread::sleep_for(2s);
        const double used = processor_seconds() - before;
        group.barrier();
        require(used < 0.02, fmt::format("{:.4f} s of processor time in 2 s", used));
      },
      [](Config& config) { config.lanes = 6; });
}

INSTANTIATE_TEST_SUITE_P(, WorkersOn, ::testing::Values(static_cast<const char*>(nullptr), "3"),
                         [](const auto& test) { return test.param == nullptr ? "Tcp" : "Cables"; });

TEST(Workers, OneThreadDrivesAllCables) {
  if (!kHasFabric) GTEST_SKIP() << "no emulated cables here";
  expect_good(
      "3", 2,
      [](Group& group) {
        std::vector<float> data(8'000'000, 1.0f);
        group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
        const auto cables = group.cables();
        require(cables.size() == 3, "three cables");
        for (const CableTraffic& cable : cables) require(cable.bytes_sent > 0, cable.id + " was not used");
      },
      [](Config& config) { config.workers = Workers::single; });
}

#ifdef __linux__
TEST(Workers, ThreadsOfACallAreGoneAfterIt) {
  expect_good(
      nullptr, 2,
      [](Group& group) {
        const size_t before = threads_of_this_process();
        std::vector<float> data(1'000'000, 1.0f);
        group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
        require(threads_of_this_process() == before, "threads have stayed");
        require(before < 5, fmt::format("{} threads between calls, as if lanes had theirs", before));
      },
      [](Config& config) {
        config.workers = Workers::per_call;
        config.lanes = 4;
      });
}
#endif

TEST(Workers, OneThreadHasOneLane) {
  Config config;
  config.workers = Workers::single;
  config.lanes = 2;
  try {
    Group::connect(config);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("2 lanes with workers \"single\""));
  }
}

}  // namespace
}  // namespace trunkline::testing
