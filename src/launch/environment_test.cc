#include "launch/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <map>

namespace trunkline {
namespace {

using Variables = std::map<std::string, std::optional<std::string>>;

Variables variables(int rank, const Settings& settings, std::optional<Terminal> terminal = std::nullopt) {
  Rendezvous rendezvous;
  rendezvous.socket = Fd(::dup(0));
  rendezvous.port = 4321;
  rendezvous.key = "00ff";
  const auto list = rank_environment(rank, 4, rendezvous, 3, terminal, settings);
  return Variables(list.begin(), list.end());
}

TEST(RankEnvironment, NamesThePlaceInTheJob) {
  Variables found = variables(2, Settings{});
  EXPECT_EQ(found["MLX_RANK"], "2");
  EXPECT_EQ(found["MLX_WORLD_SIZE"], "4");
  EXPECT_EQ(found["MLX_JACCL_COORDINATOR"], "127.0.0.1:4321");
  EXPECT_EQ(found["TRUNKLINE_JOB_KEY"], "00ff");
  // Taken away: they are of a job that the launcher itself may be a rank of.
  for (const char* name : {"JACCL_RANK", "JACCL_COORDINATOR", "TRUNKLINE_LISTEN_FD"}) {
    ASSERT_TRUE(found.contains(name));
    EXPECT_FALSE(found[name].has_value());
  }
  EXPECT_TRUE(variables(0, Settings{})["TRUNKLINE_LISTEN_FD"].has_value());
}

TEST(RankEnvironment, SharesTheCoresUnlessTheUserDid) {
  Variables found = variables(0, Settings{});
  EXPECT_EQ(found["OPENBLAS_NUM_THREADS"], "3");
  EXPECT_EQ(found["OMP_NUM_THREADS"], "3");
  Settings settings;
  settings.openblas_threads = "2";
  found = variables(0, settings);
  EXPECT_FALSE(found.contains("OPENBLAS_NUM_THREADS"));
  EXPECT_EQ(found["OMP_NUM_THREADS"], "3");
  settings = {};
  settings.omp_threads = "2";
  found = variables(0, settings);
  EXPECT_FALSE(found.contains("OPENBLAS_NUM_THREADS"));
  EXPECT_FALSE(found.contains("OMP_NUM_THREADS"));
}

TEST(RankEnvironment, PassesTheTerminalOn) {
  Variables found = variables(1, Settings{}, Terminal{100, 30});
  EXPECT_EQ(found["COLUMNS"], "100");
  EXPECT_EQ(found["LINES"], "30");
  Settings settings;
  settings.columns = "60";
  EXPECT_FALSE(variables(1, settings, Terminal{100, 30}).contains("COLUMNS"));
  EXPECT_FALSE(variables(1, Settings{}).contains("COLUMNS"));
}

TEST(Rendezvous, ListensAlready) {
  const Rendezvous rendezvous = open_rendezvous(2);
  const Fd client(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(rendezvous.port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(::connect(client.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

TEST(Rendezvous, HasAKeyOfItsOwn) {
  const Rendezvous first = open_rendezvous(1), second = open_rendezvous(1);
  EXPECT_THAT(first.key, testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(first.key.size(), 64u);
  EXPECT_NE(first.key, second.key);
  EXPECT_NE(first.port, second.port);
}

}  // namespace
}  // namespace trunkline
