// Cables that are not where the lists of devices say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "link/verbs_ranks_test.h"

namespace trunkline::test {
namespace {

using testing::HasSubstr;

std::string limits(bool resolve_gids) {
  return std::string(R"("limits": {"resolve_gids": )") + (resolve_gids ? "true}" : "false}");
}

Ranks::Change listed(const DeviceMatrix& matrix, std::chrono::milliseconds timeout = 5s) {
  return [=](int, TrunkOptions& options) {
    options.matrix = matrix;
    options.timeout = timeout;
    options.lanes = 2;
  };
}

void expect_names(std::vector<LaneTrunks>& lanes, int peer, const std::vector<std::string>& names) {
  for (LaneTrunks& lane : lanes) {
    REQUIRE(lane.trunks[peer].size() == names.size());
    for (size_t i = 0; i < names.size(); ++i) REQUIRE(lane.trunks[peer][i].link->name() == names[i]);
  }
}

void expect_everywhere(const std::vector<Ranks::Result>& results, const std::vector<std::string>& texts) {
  for (const auto& each : results) {
    EXPECT_EQ(each.code, 3);
    EXPECT_EQ(each.kind, ErrorKind::mismatch) << each.text;
    for (const std::string& text : texts) EXPECT_THAT(each.text, HasSubstr(text));
  }
}

// With and without devices that look at addresses: the first refuse a connection over the wrong cable, the others make
// one that leads elsewhere.
class Proof : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Devices, Proof, testing::Bool(),
                         [](const auto& each) { return each.param ? "LookAtAddresses" : "DoNotLook"; });

TEST_P(Proof, PutsCrossedListsRight) {
  Ranks job(wiring_from_json(R"({"ranks": 2, "cables": [{"ends": ["0.rdma_en2", "1.rdma_en3"]},
                                                        {"ends": ["0.rdma_en3", "1.rdma_en2"]}], )" +
                                 limits(GetParam()) + "}",
                             "wiring"),
            listed({{{}, {"rdma_en2", "rdma_en3"}}, {{"rdma_en2", "rdma_en3"}, {}}}));
  const auto results = job.run([](int rank, auto& lanes, auto& tell) {
    if (rank == 0) expect_names(lanes, 1, {"rdma_en2-rdma_en3", "rdma_en3-rdma_en2"});
    if (rank == 1) expect_names(lanes, 0, {"rdma_en3-rdma_en2", "rdma_en2-rdma_en3"});
    exchange_names(rank, lanes, tell);
  });
  for (const auto& each : results) {
    EXPECT_EQ(each.code, 0) << each.text;
    EXPECT_THAT(each.log, HasSubstr("the lists of devices of rank 0 and rank 1 are in different orders; put right: "
                                    "rdma_en2 - rdma_en3, rdma_en3 - rdma_en2"));
  }
}

TEST_P(Proof, PutsShuffledListsRight) {
  Ranks job(
      wiring_from_json(R"({"ranks": 3, "cables": [
      {"ends": ["0.a", "1.a"]}, {"ends": ["0.b", "1.b"]}, {"ends": ["0.c", "1.c"]}, {"ends": ["0.d", "1.d"]},
      {"ends": ["0.e", "2.a"]}, {"ends": ["1.e", "2.b"]}, {"ends": ["1.f", "2.c"]}], )" +
                           limits(GetParam()) + "}",
                       "wiring"),
      listed({{{}, {"a", "b", "c", "d"}, {"e"}}, {{"b", "d", "c", "a"}, {}, {"e", "f"}}, {{"a"}, {"c", "b"}, {}}}));
  const auto results = job.run([](int rank, auto& lanes, auto& tell) {
    if (rank < 2) expect_names(lanes, 1 - rank, {"a", "b", "c", "d"});
    if (rank == 1) expect_names(lanes, 2, {"e-b", "f-c"});
    if (rank == 2) expect_names(lanes, 1, {"b-e", "c-f"});
    exchange_names(rank, lanes, tell);
  });
  for (const auto& each : results) EXPECT_EQ(each.code, 0) << each.text;
}

TEST_P(Proof, RefusesACableToAnotherRank) {
  Ranks job(wiring_from_json(R"({"ranks": 3, "cables": [{"ends": ["0.a", "1.a"]}, {"ends": ["0.b", "2.a"]},
                                                        {"ends": ["1.b", "2.b"]}], )" +
                                 limits(GetParam()) + "}",
                             "wiring"),
            listed({{{}, {"b"}, {"a"}}, {{"a"}, {}, {"b"}}, {{"a"}, {"b"}, {}}}));
  const auto results = job.run();
  expect_everywhere(
      results, {"a of rank 0 is listed for rank 2, but its cable leads to a of rank 1",
                "b of rank 0 is listed for rank 1, but its cable leads to a of rank 2", "correct the device matrix"});
  EXPECT_LT(results[0].seconds, 5);
}

TEST_P(Proof, RefusesACableThatLeadsNowhere) {
  // Those of rank 2 are there, but nobody lists them.
  Ranks job(wiring_from_json(R"({"ranks": 3, "cables": [{"ends": ["0.a", "1.a"]}, {"ends": ["0.b", "2.a"]},
                                                        {"ends": ["1.b", "2.b"]}], )" +
                                 limits(GetParam()) + "}",
                             "wiring"),
            listed({{{}, {"a", "b"}, {}}, {{"a", "b"}, {}, {}}, {{}, {}, {}}}, 800ms));
  const auto results = job.run();
  expect_everywhere(results, {"cables: b of rank 0 is listed with b of rank 1, but no cable joins them"});
  if (GetParam()) expect_everywhere(results, {"Connection timed out"});
}

TEST(Cables, ThatLoseAndDamageMuchAreProvenAllTheSame) {
  Ranks job(wiring_from_spec("3:loss=0.4,damage=0.3,seed=5", 2));
  const auto results = job.run();
  for (const auto& each : results) EXPECT_EQ(each.code, 0) << each.text;
  EXPECT_LT(results[0].seconds, 4);
}

TEST(Cables, ThatLoseEverythingAreRefused) {
  Ranks job(wiring_from_json(R"({"ranks": 2, "cables": [{"ends": ["0.a", "1.a"]},
                                                        {"ends": ["0.b", "1.b"], "loss": 1}]})",
                             "wiring"),
            [](int, TrunkOptions& options) { options.timeout = 600ms; });
  expect_everywhere(job.run(), {"b of rank 0 is listed with b of rank 1, but no cable joins them"});
}

// Ten lanes need all queue pairs of a device: the proof's are gone by then. And nothing is left after many starts.
TEST(Cables, AreProvenWithoutLeavingAnything) {
  Ranks job(wiring_from_json(R"({"ranks": 2, "cables": [{"ends": ["0.a", "1.b"]}, {"ends": ["0.b", "1.a"]}],
                                 "limits": {"memory_regions": 10}})",
                             "wiring"),
            [](int, TrunkOptions& options) {
              options.matrix = {{{}, {"a", "b"}}, {{"a", "b"}, {}}};
              options.lanes = 10;
            });
  for (const auto& each : job.run()) EXPECT_EQ(each.code, 0) << each.text;
}

}  // namespace
}  // namespace trunkline::test
