// Rings: who takes part, what goes which way, and jobs whose ranks are not all joined.
#include "comm/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "comm/job.h"
#include "comm/ranks_test.h"
#include "comm/values_test.h"

namespace trunkline::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

const auto kNoError = Each(Field(&Thrown::text, ""));

Paths wired(size_t ranks, const std::vector<std::pair<size_t, size_t>>& pairs) {
  Paths paths(ranks, std::vector<size_t>(ranks, 0));
  for (const auto& [a, b] : pairs) paths[a][b] = paths[b][a] = 1;
  return paths;
}

// Ranks as threads, over TCP, but with only those paths.
std::vector<Thrown> run_wired(
    const Paths& paths, const std::function<void(Group&)>& body, const Tweak& tweak = [](Config&) {}) {
  return run_threads(
      static_cast<int>(paths.size()),
      [&](const Config& config) { return group_of(std::make_shared<trunkline::Job>(config, paths)); }, body, tweak);
}

// What this rank has sent to each other one.
std::vector<uint64_t> sent_by(Group& group) {
  std::vector<uint64_t> sent(static_cast<size_t>(group.size()));
  for (const CableTraffic& cable : group.cables()) sent[static_cast<size_t>(cable.peer)] += cable.bytes_sent;
  return sent;
}

const Paths kCircle = wired(4, {{0, 2}, {2, 1}, {1, 3}, {3, 0}});  // 0 2 1 3
const size_t kNext[] = {2, 3, 1, 0}, kBefore[] = {3, 2, 0, 1};

TEST(Ring, HalfOfEveryBlockGoesEachWay) {
  for (const int lanes : {1, 3}) {
    const auto errors = run_wired(
        kCircle,
        [](Group& group) {
          const size_t rank = static_cast<size_t>(group.rank());
          const size_t block = 37 * kMessageUnit;  // 19 units one way, 18 the other
          const Buffer in = input_of(group.rank(), block, Dtype::u8);
          Buffer out(4 * block), expected;
          for (int each = 0; each < 4; ++each) {
            const Buffer theirs = input_of(each, block, Dtype::u8);
            expected.insert(expected.end(), theirs.begin(), theirs.end());
          }
          group.all_gather(in.data(), out.data(), block, Dtype::u8);
          EXPECT_EQ(out, expected);
          auto sent = sent_by(group);
          EXPECT_EQ(sent[kNext[rank]], 3 * 19 * kMessageUnit);
          EXPECT_EQ(sent[kBefore[rank]], 3 * 18 * kMessageUnit);

          // Both ways at once, whoever begins; the last rank of each way passes nothing on.
          for (int root = 0; root < 4; ++root) {
            const auto before = sent_by(group);
            Buffer data = input_of(group.rank(), block, Dtype::u8);
            group.broadcast(data.data(), block, Dtype::u8, root);
            EXPECT_EQ(data, input_of(root, block, Dtype::u8));
            sent = sent_by(group);
            const size_t from = static_cast<size_t>(root);
            EXPECT_EQ(sent[kNext[rank]] - before[kNext[rank]], kNext[rank] == from ? 0 : 19 * kMessageUnit);
            EXPECT_EQ(sent[kBefore[rank]] - before[kBefore[rank]], kBefore[rank] == from ? 0 : 18 * kMessageUnit);
          }
        },
        [&](Config& config) { config.lanes = lanes; });
    EXPECT_THAT(errors, kNoError);
  }
}

TEST(Ring, PartialSumsOfHalvesTravelInF32) {
  const auto errors = run_wired(kCircle, [](Group& group) {
    // In bfloat16, 256 + 1 is 256. The sum is 259, half way between two of its numbers.
    std::vector<uint16_t> in(40'000, 0x3f80), out(40'000);
    if (group.rank() == 2) std::fill(in.begin(), in.end(), 0x4380);
    group.all_sum(in.data(), out.data(), in.size(), Dtype::bf16);
    EXPECT_THAT(out, Each(0x4382));  // 260: the even one
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Ring, NobodyTalksToRanksWithoutAPath) {
  const auto errors = run_wired(kCircle, [](Group& group) {
    std::vector<float> data(100'000, 1.0f);
    group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
    EXPECT_THAT(data, Each(4.0f));
    group.barrier();
    const auto sent = sent_by(group);
    for (size_t peer = 0; peer < 4; ++peer) {
      const size_t rank = static_cast<size_t>(group.rank());
      EXPECT_EQ(sent[peer] > 0, peer == kNext[rank] || peer == kBefore[rank]) << rank << " to " << peer;
    }
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Ring, ABarrierHoldsEveryoneUntilTheLast) {
  for (const int ranks : {2, 3, 4, 5, 8}) {
    std::atomic<int> arrived{0};
    const auto errors = run_threads(
        ranks,
        [&](Group& group) {
          for (int round = 1; round <= 10; ++round) {
            ++arrived;
            group.barrier();
            EXPECT_GE(arrived, round * ranks);
          }
        },
        [](Config& config) { config.algorithm = Algorithm::ring; });
    EXPECT_THAT(errors, kNoError);
  }
}

TEST(Ring, TransfersNeedAPath) {
  const auto errors = run_wired(kCircle, [](Group& group) {
    float value = static_cast<float>(group.rank());
    const int far = group.rank() ^ 1;  // across
    try {
      group.send(&value, 1, Dtype::f32, far);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unsupported);
      EXPECT_THAT(error.what(), AllOf(HasSubstr("send: there is no cable between rank " + std::to_string(group.rank())),
                                      HasSubstr("and rank " + std::to_string(far))));
    }
    EXPECT_THROW(group.recv(&value, 1, Dtype::f32, far), Error);
    // Where there is one, they work.
    if (group.rank() == 0) group.send(&value, 1, Dtype::f32, 2);
    if (group.rank() == 2) group.recv(&value, 1, Dtype::f32, 0);
    EXPECT_EQ(value, group.rank() == 2 ? 0 : group.rank());
    group.barrier();
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Ring, PartsOfAJobGoTheirOwnWay) {
  const auto errors = run_wired(kCircle, [](Group& group) {
    // Ranks 0 and 2 have a path, and so have 1 and 3; 0 and 1 have none.
    const auto joined = group.split(group.rank() % 2, 0), apart = group.split(group.rank() / 2, 0);
    float value = 1;
    joined->all_sum(&value, &value, 1, Dtype::f32);
    EXPECT_EQ(value, 2);
    EXPECT_THROW(apart->barrier(), Error);
    group.all_sum(&value, &value, 1, Dtype::f32);
    EXPECT_EQ(value, 8);
  });
  EXPECT_THAT(errors, kNoError);
}

TEST(Ring, ALineIsNoRing) {
  const auto errors = run_wired(wired(3, {{0, 1}, {1, 2}}), [](Group& group) {
    float value = 1;
    if (group.rank() == 0) group.send(&value, 1, Dtype::f32, 1);
    if (group.rank() == 1) group.recv(&value, 1, Dtype::f32, 0);
    group.all_sum(&value, &value, 1, Dtype::f32);
  });
  EXPECT_THAT(errors,
              Each(AllOf(Field(&Thrown::kind, ErrorKind::unsupported),
                         Field(&Thrown::text, HasSubstr("no ring along the cables joins all ranks: there is no cable "
                                                        "between rank 0 (" +
                                                        host_name() + ") and rank 2 (" + host_name() + ")")))));
}

TEST(Ring, MeshAndBroadcastNeedEveryPath) {
  for (const Algorithm algorithm : {Algorithm::mesh, Algorithm::broadcast}) {
    const auto errors = run_wired(
        kCircle, [](Group& group) { group.barrier(); }, [&](Config& config) { config.algorithm = algorithm; });
    EXPECT_THAT(errors, Each(Field(&Thrown::text,
                                   AllOf(HasSubstr("needs a cable between every two ranks"), HasSubstr("rank 0 ("),
                                         HasSubstr("and rank 1 ("), HasSubstr("and rank 3 (")))));
  }
}

TEST(Ring, ADisagreementIsOneErrorOnEveryRank) {
  const auto errors = run_wired(kCircle, [](Group& group) {
    std::vector<float> data(100'000);
    group.barrier();
    group.all_sum(data.data(), data.data(), group.rank() == 3 ? 10 : data.size(), Dtype::f32);
  });
  EXPECT_THAT(errors, Each(AllOf(Field(&Thrown::kind, ErrorKind::mismatch),
                                 Field(&Thrown::text, AllOf(HasSubstr("called all_sum of 100000 float32 by ring"),
                                                            HasSubstr("called all_sum of 10 float32 by ring"))))));
}

}  // namespace
}  // namespace trunkline::testing
