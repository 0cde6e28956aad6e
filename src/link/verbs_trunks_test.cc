// Trunks on emulated cables, up to connected links that carry messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "link/verbs_ranks_test.h"

namespace trunkline::test {
namespace {

void expect_good(const std::vector<Ranks::Result>& results) {
  for (const auto& each : results) EXPECT_EQ(each.code, 0) << each.text;
}

TEST(Trunks, JoinEveryLaneAndCable) {
  for (const auto& [ranks, cables, lanes] : {std::tuple{2, 1, 1}, {2, 6, 3}, {3, 2, 2}, {3, 1, 10}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << cables << " cables, " << lanes << " lanes");
    Ranks job(wiring_from_spec(std::to_string(cables), ranks),
              [lanes = static_cast<size_t>(lanes)](int, TrunkOptions& options) { options.lanes = lanes; });
    const auto results = job.run([&, ranks = ranks, cables = cables](int rank, auto& trunks, const Exchange& tell) {
      REQUIRE(trunks.size() == static_cast<size_t>(lanes));
      for (const LaneTrunks& lane : trunks) {
        REQUIRE(lane.trunks.size() == static_cast<size_t>(ranks));
        for (int peer = 0; peer < ranks; ++peer) {
          REQUIRE(lane.trunks[peer].size() == static_cast<size_t>(peer == rank ? 0 : cables));
        }
      }
      exchange_names(rank, trunks, tell);
    });
    expect_good(results);
    for (const auto& each : results) EXPECT_EQ(each.log, "");
  }
}

}  // namespace
}  // namespace trunkline::test
