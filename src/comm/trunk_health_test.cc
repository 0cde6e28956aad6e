#include "comm/trunk_health.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

namespace trunkline {
namespace {

using namespace std::chrono_literals;

// A trunk of two cables, looked at every 50 ms.
class TrunkHealthTest : public ::testing::Test {
 protected:
  // What is told in that time: C0 and c0 for cable 0 lost and working, R and r for the rank silent and heard.
  std::string pass(FrameTime time, bool heard, std::array<bool, 2> suspended) {
    std::string told;
    for (const FrameTime end = now_ + time; now_ < end;) {
      now_ += 50ms;
      if (heard) heard_ = now_;
      health_.look(
          now_, heard_, [&](size_t link) { return suspended[link]; },
          [&](TrunkHealth::News news, size_t link) {
            switch (news) {
              case TrunkHealth::News::cable_lost: told += fmt::format("C{}", link); break;
              case TrunkHealth::News::cable_works: told += fmt::format("c{}", link); break;
              case TrunkHealth::News::rank_silent: told += "R"; break;
              case TrunkHealth::News::rank_heard: told += "r"; break;
            }
          });
    }
    return told;
  }

 private:
  TrunkHealth health_{2, 400ms};
  FrameTime now_ = 100s, heard_{0};
};

TEST_F(TrunkHealthTest, ACableIsBlamedWhileItsPeerIsHeard) {
  EXPECT_EQ(pass(1s, true, {false, false}), "");
  EXPECT_EQ(pass(1s, true, {true, false}), "C0");
  EXPECT_EQ(pass(1s, true, {true, true}), "C1");
  EXPECT_EQ(pass(1s, true, {false, true}), "c0");
}

TEST_F(TrunkHealthTest, NoCableIsBlamedForASilentRank) {
  EXPECT_EQ(pass(1s, true, {false, false}), "");
  EXPECT_EQ(pass(1s, false, {false, false}), "");
  EXPECT_EQ(pass(50ms, false, {true, false}), "");
  EXPECT_EQ(pass(5s, false, {true, true}), "R");
  EXPECT_EQ(pass(50ms, true, {true, true}), "r");
  EXPECT_EQ(pass(200ms, true, {false, true}), "");  // the other cable has not answered yet
  EXPECT_EQ(pass(1s, true, {false, false}), "");
}

TEST_F(TrunkHealthTest, ACableThatStaysLostAfterASilenceIsBlamedThen) {
  EXPECT_EQ(pass(1s, true, {false, false}), "");
  EXPECT_EQ(pass(1s, false, {false, false}), "");
  EXPECT_EQ(pass(5s, false, {true, true}), "R");
  EXPECT_EQ(pass(1s, true, {false, true}), "rC1");
}

TEST_F(TrunkHealthTest, ACableBlamedBeforeASilenceStaysSo) {
  EXPECT_EQ(pass(1s, true, {true, false}), "C0");
  EXPECT_EQ(pass(1s, false, {true, false}), "");
  EXPECT_EQ(pass(5s, false, {true, true}), "R");
  EXPECT_EQ(pass(1s, true, {false, false}), "c0r");
}

}  // namespace
}  // namespace trunkline
