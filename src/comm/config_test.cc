// Config::from_env, each case in a process of its own, since the environment is read once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>

#include "comm/ranks_test.h"

namespace trunkline::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

// What from_env() throws, or what `show` says of its result.
std::string from(const Environment& environment, const std::function<std::string(const Config&)>& show) {
  RankProcess child([&](const auto&) {
    for (const char* name :
         {"JACCL_RANK", "MLX_RANK", "MLX_WORLD_SIZE", "JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR", "TRUNKLINE_JOB_KEY",
          "TRUNKLINE_LISTEN_FD", "TRUNKLINE_LANES", "TRUNKLINE_TIMEOUT", "TRUNKLINE_ALGORITHM", "OMPI_COMM_WORLD_RANK",
          "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    throw std::runtime_error(show(Config::from_env()));
  });
  return child.wait().error;
}

std::string place(const Config& config) {
  return fmt::format("{} of {} at {}", config.rank, config.size, config.coordinator);
}

TEST(FromEnv, NoRankIsAJobOfOne) { EXPECT_EQ(from({}, place), "0 of 1 at "); }

TEST(FromEnv, AWholePlace) {
  const Environment whole{{"MLX_RANK", "1"}, {"MLX_WORLD_SIZE", "3"}, {"MLX_JACCL_COORDINATOR", "127.0.0.1:5000"}};
  EXPECT_EQ(from(whole, place), "1 of 3 at 127.0.0.1:5000");
}

TEST(FromEnv, TheNamesOfJacclWin) {
  EXPECT_EQ(from({{"MLX_RANK", "1"},
                  {"JACCL_RANK", "2"},
                  {"MLX_WORLD_SIZE", "3"},
                  {"JACCL_COORDINATOR", "10.0.0.1:1"},
                  {"MLX_JACCL_COORDINATOR", "10.0.0.2:2"}},
                 place),
            "2 of 3 at 10.0.0.1:1");
}

TEST(FromEnv, APlaceInPartIsRefused) {
  const Environment whole{{"MLX_RANK", "0"}, {"MLX_WORLD_SIZE", "2"}, {"MLX_JACCL_COORDINATOR", "127.0.0.1:5000"}};
  for (const auto& [missing, value] : whole) {
    Environment part = whole;
    part.erase(missing);
    EXPECT_THAT(from(part, place),
                AllOf(HasSubstr("only in part: " + missing + " not set"), HasSubstr("trunkline launch")));
  }
  EXPECT_THAT(from({{"MLX_RANK", "1"}}, place), HasSubstr("MLX_WORLD_SIZE"));
  EXPECT_THAT(from({{"MLX_JACCL_COORDINATOR", "127.0.0.1:5000"}}, place),
              HasSubstr("MLX_RANK and MLX_WORLD_SIZE not set"));
}

TEST(FromEnv, OneRankNeedsNoCoordinator) {
  EXPECT_EQ(from({{"MLX_RANK", "0"}, {"MLX_WORLD_SIZE", "1"}}, place), "0 of 1 at ");
}

TEST(FromEnv, OtherLaunchersRanksNeverGoOnAlone) {
  const Environment mpirun{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_THAT(from(mpirun, place), HasSubstr("MLX_JACCL_COORDINATOR not set"));
  Environment with = mpirun;
  with["MLX_JACCL_COORDINATOR"] = "10.0.0.1:5000";
  EXPECT_EQ(from(with, place), "1 of 2 at 10.0.0.1:5000");
  EXPECT_THAT(from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}}, place), HasSubstr("MLX_JACCL_COORDINATOR not set"));
  EXPECT_EQ(from({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}}, place), "0 of 1 at ");
}

TEST(FromEnv, ValuesThatCannotBe) {
  const auto with = [](const std::string& name, const std::string& value) {
    Environment environment{{"MLX_RANK", "0"}, {"MLX_WORLD_SIZE", "2"}, {"MLX_JACCL_COORDINATOR", "127.0.0.1:5000"}};
    environment[name] = value;
    return from(environment, place);
  };
  EXPECT_THAT(with("MLX_RANK", "2"), AllOf(HasSubstr("MLX_RANK"), HasSubstr("from 0 to 1")));
  EXPECT_THAT(with("MLX_RANK", "one"), HasSubstr("MLX_RANK: \"one\""));
  EXPECT_THAT(with("MLX_WORLD_SIZE", "0"), HasSubstr("MLX_WORLD_SIZE"));
  EXPECT_THAT(with("TRUNKLINE_LANES", "11"), HasSubstr("TRUNKLINE_LANES"));
  EXPECT_THAT(with("TRUNKLINE_TIMEOUT", "soon"), HasSubstr("TRUNKLINE_TIMEOUT"));
  EXPECT_THAT(with("TRUNKLINE_ALGORITHM", "tree"),
              HasSubstr("TRUNKLINE_ALGORITHM: \"tree\" is not one of auto, mesh, broadcast, ring"));
  EXPECT_THAT(with("TRUNKLINE_LISTEN_FD", "x"), HasSubstr("TRUNKLINE_LISTEN_FD"));
}

TEST(FromEnv, Tuning) {
  const auto show = [](const Config& config) {
    return fmt::format("{} lanes, {} ms, algorithm {}, key {}", config.lanes, config.timeout.count(),
                       static_cast<int>(config.algorithm), config.job_key);
  };
  EXPECT_EQ(from({{"TRUNKLINE_LANES", "3"},
                  {"TRUNKLINE_TIMEOUT", "7"},
                  {"TRUNKLINE_ALGORITHM", "broadcast"},
                  {"TRUNKLINE_JOB_KEY", "abcd"}},
                 show),
            "3 lanes, 7000 ms, algorithm 2, key abcd");
}

TEST(Connect, AJobOfOneNeedsNobody) {
  const auto group = Group::connect({});
  float value = 3;
  group->all_sum(&value, &value, 1, Dtype::f32);
  EXPECT_EQ(value, 3);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->host_of(0), host_name());
}

TEST(Connect, ConfigsThatCannotBe) {
  const auto kind_of = [](const std::function<void(Config&)>& tweak) {
    Config config = Job(2).config(1);
    tweak(config);
    try {
      Group::connect(config);
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::system;
  };
  EXPECT_EQ(kind_of([](Config& config) { config.rank = 2; }), ErrorKind::input);
  EXPECT_EQ(kind_of([](Config& config) { config.rank = -1; }), ErrorKind::input);
  EXPECT_EQ(kind_of([](Config& config) { config.size = 0; }), ErrorKind::input);
  EXPECT_EQ(kind_of([](Config& config) { config.coordinator = ""; }), ErrorKind::input);
  EXPECT_EQ(kind_of([](Config& config) { config.lanes = -1; }), ErrorKind::input);
  EXPECT_EQ(kind_of([](Config& config) { config.timeout = std::chrono::milliseconds(0); }), ErrorKind::input);
}

#ifdef __linux__
size_t open_descriptors() {
  size_t count = 0;
  for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

TEST(Connect, ManyTimesInOneProcessLeavesNothingBehind) {
  const size_t before = open_descriptors();
  for (int round = 0; round < 50; ++round) {
    const auto errors = run_threads(2, [](Group& group) { group.barrier(); });
    for (const Thrown& each : errors) ASSERT_EQ(each.text, "");
  }
  EXPECT_EQ(open_descriptors(), before);
}
#endif

}  // namespace
}  // namespace trunkline::testing
