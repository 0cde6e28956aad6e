// The promise about bits: what an all-reduce gives depends on the inputs, the dtype and the number of ranks, and in a
// ring on the order of that; never on lanes, cables, the transport, faults that were repaired, or whether mesh or
// broadcast ran. So every job here has to give the bits of the plain loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "comm/fabric_ranks_test.h"
#include "comm/values_test.h"

namespace trunkline::testing {
namespace {

struct Setting {
  const char* cables;  // as launch --cables has them; null: TCP
  int ranks;
  int lanes;
  Algorithm algorithm;
  size_t frame_bytes = 0;
};
std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.ranks << " ranks, " << setting.lanes << " lanes, " << text_of(setting.algorithm) << ", "
             << (setting.cables != nullptr ? setting.cables : "TCP");
}

void require_same(const Buffer& got, size_t offset, const Buffer& expected, const std::string& what) {
  if (std::equal(got.begin() + static_cast<ptrdiff_t>(offset), got.end(), expected.begin(), expected.end())) return;
  throw std::runtime_error("other bits: " + what);
}

// Nothing, one element, odd ones; less and more than a stripe, a block and a frame take.
const size_t kCounts[] = {0, 1, 1025, 40'003};

void require_promised_bits(Group& group, Algorithm algorithm) {
  for (const Dtype dtype : kAllDtypes) {
    for (const size_t count : kCounts) {
      const Case& values = case_of(group.size(), count, dtype);
      const Buffer& in = values.inputs[static_cast<size_t>(group.rank())];
      const std::string what = fmt::format("{} {}", count, name_of(dtype));
      // Apart, at odd addresses; then in place.
      Buffer from(in.size() + 3), to(in.size() + 1);
      std::copy(in.begin(), in.end(), from.begin() + 3);
      group.all_sum(from.data() + 3, to.data() + 1, count, dtype);
      require_same(to, 1, values.of(algorithm, Reduction::sum), what);
      group.all_sum(from.data() + 3, from.data() + 3, count, dtype);
      require_same(from, 3, values.of(algorithm, Reduction::sum), what + " in place");
    }
  }
  // As much as several frames of every lane to every rank, in each floating format.
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const size_t count = 600'001;
    const Case& values = case_of(group.size(), count, dtype);
    Buffer both = values.inputs[static_cast<size_t>(group.rank())];
    group.all_sum(both.data(), both.data(), count, dtype);
    require_same(both, 0, values.of(algorithm, Reduction::sum), fmt::format("{} {}", count, name_of(dtype)));
  }
}

class Bits : public ::testing::TestWithParam<Setting> {};

TEST_P(Bits, AreThoseOfThePlainLoops) {
  const Setting& setting = GetParam();
  const Algorithm algorithm = setting.algorithm;
  const Tweak tweak = [&](Config& config) {
    config.lanes = setting.lanes;
    config.algorithm = algorithm;
    config.frame_bytes = setting.frame_bytes;
  };
  if (setting.cables == nullptr) {
    const auto errors = run_threads(
        setting.ranks, [&](Group& group) { require_promised_bits(group, algorithm); }, tweak);
    EXPECT_THAT(errors, ::testing::Each(::testing::Field(&Thrown::text, "")));
    return;
  }
  if (!kHasFabric) GTEST_SKIP() << "no emulated cables here";
  const Job job(setting.ranks);
  const TestFabric fabric(setting.cables, setting.ranks);
  auto ranks = start_processes(
      job, [&](Group& group, const auto&) { require_promised_bits(group, algorithm); }, fabric.tweak(tweak));
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

constexpr auto kMesh = Algorithm::mesh, kBroadcast = Algorithm::broadcast, kRing = Algorithm::ring;

std::string name_of_case(const ::testing::TestParamInfo<Setting>& test) {
  return fmt::format("{}Ranks{}Lanes{}_{}", test.param.ranks, test.param.lanes, text_of(test.param.algorithm),
                     test.index);
}

INSTANTIATE_TEST_SUITE_P(Tcp, Bits,
                         ::testing::Values(Setting{nullptr, 2, 1, kMesh}, Setting{nullptr, 2, 2, kBroadcast},
                                           Setting{nullptr, 2, 5, kMesh}, Setting{nullptr, 3, 3, kMesh},
                                           Setting{nullptr, 3, 6, kBroadcast}, Setting{nullptr, 4, 4, kMesh},
                                           Setting{nullptr, 4, 6, kMesh}, Setting{nullptr, 8, 2, kMesh},
                                           Setting{nullptr, 8, 1, kBroadcast}, Setting{nullptr, 2, 3, kRing},
                                           Setting{nullptr, 3, 2, kRing}, Setting{nullptr, 4, 6, kRing},
                                           Setting{nullptr, 8, 2, kRing}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Cables, Bits,
                         ::testing::Values(Setting{"1", 2, 1, kMesh}, Setting{"2", 2, 6, kMesh},
                                           Setting{"3", 3, 2, kBroadcast}, Setting{"4", 2, 3, kMesh, 4096},
                                           Setting{"5", 3, 5, kMesh}, Setting{"6", 2, 4, kBroadcast, 8192},
                                           Setting{"2", 4, 2, kMesh}, Setting{"1", 8, 1, kMesh},
                                           Setting{"2", 3, 3, kRing}, Setting{"1", 4, 2, kRing, 4096}),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(FaultyCables, Bits,
                         ::testing::Values(Setting{"1:loss=0.02,seed=1", 2, 1, kMesh},
                                           Setting{"2:damage=0.02,seed=2", 2, 3, kMesh},
                                           Setting{"3:loss=0.01,damage=0.01,seed=3", 3, 2, kBroadcast, 4096},
                                           Setting{"4:loss=0.01,damage=0.01,seed=4", 2, 6, kMesh, 4096},
                                           Setting{"6:loss=0.02,damage=0.02,delay_us=50,seed=5", 2, 2, kMesh},
                                           Setting{"2:loss=0.02,seed=6", 4, 2, kMesh, 8192},
                                           Setting{"2:loss=0.02,seed=7", 3, 2, kRing}),
                         name_of_case);

}  // namespace
}  // namespace trunkline::testing
