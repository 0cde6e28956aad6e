// `trunkline bench` as a program: what its table and its lines of JSON hold, and how it ends.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/process.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Stream = ProcessOptions::Stream;

#ifdef __linux__
constexpr bool kFabric = true;
#else
constexpr bool kFabric = false;
#endif

const std::string kProgram = TRUNKLINE_BINARY_DIR "/trunkline";

std::string read_all(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

struct Result {
  int code = 0;
  std::string output, error;
};

Result run(std::vector<std::string> arguments) {
  ProcessOptions options;
  options.argv = std::move(arguments);
  options.argv.insert(options.argv.begin(), kProgram);
  options.input = Stream::null;
  options.output = options.error = Stream::pipe;
  Process process = Process::start(options);
  Result result;
  std::thread errors([&] { result.error = read_all(process.error); });
  result.output = read_all(process.output);
  errors.join();
  const auto status = process.wait(Deadline::after(60s));
  result.code = status ? status->code : -1;
  return result;
}

class BenchProgram : public testing::Test {
 protected:
  ~BenchProgram() override { std::filesystem::remove(file_); }

  // `trunkline bench` on ranks joined by `cables`; none: over TCP.
  Result bench(const std::vector<std::string>& arguments, const std::string& cables = "", int ranks = 2) {
    std::vector<std::string> all = {"launch", "-n", std::to_string(ranks)};
    if (!cables.empty()) all.insert(all.end(), {"--cables", cables});
    all.insert(all.end(), {"--", kProgram, "bench"});
    all.insert(all.end(), arguments.begin(), arguments.end());
    all.insert(all.end(), {"-n", "3", "-w", "1", "--json", file_});
    return run(all);
  }

  std::vector<json> lines() const {
    std::vector<json> result;
    std::istringstream text(read_file(file_));
    for (std::string line; std::getline(text, line);) result.push_back(json::parse(line));
    return result;
  }

  const std::string file_ = std::filesystem::temp_directory_path() / fmt::format("trunkline-bench-{}.json", ::getpid());
};

std::vector<size_t> bytes_of(const std::vector<json>& lines) {
  std::vector<size_t> result;
  for (const json& line : lines) result.push_back(line.at("bytes"));
  return result;
}

// One rank's failure is told to the others, so that the job ends at once.
TEST_F(BenchProgram, AFailureOfOneRankEndsAll) {
  for (const std::vector<std::string>& what :
       {std::vector<std::string>{"allreduce", "-b", "1K"}, {"step", "--layers", "2", "--gradient-bytes", "1M"}}) {
    std::vector<std::string> all = {"launch", "-n", "3", "--", kProgram, "bench"};
    all.insert(all.end(), what.begin(), what.end());
    all.insert(all.end(), {"--json", "/nonexistent/file.json"});
    const Result result = run(all);
    EXPECT_EQ(result.code, 1);
    for (const char* rank : {"[0]", "[1]", "[2]"}) {
      EXPECT_THAT(result.error, testing::ContainsRegex(fmt::format("\\{}.*/nonexistent/file.json", rank)));
    }
  }
}

TEST_F(BenchProgram, WritesALineForEachSize) {
  const Result result = bench({"allreduce", "-b", "1K", "-e", "300K", "-f", "16", "--check", "--profile"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(bytes_of(lines()), ElementsAre(1024, 16384, 262144));
  for (const json& line : lines()) {
    EXPECT_GT(line.at("time_us"), 0);
    EXPECT_LE(line.at("p50_us"), line.at("p99_us"));
    EXPECT_NEAR(line.at("algbw_gbps"), 8e-3 * double(line.at("bytes")) / double(line.at("time_us")), 1e-6);
    EXPECT_EQ(line.at("busbw_gbps"), line.at("algbw_gbps"));  // 2 (n - 1) / n of two ranks
    EXPECT_EQ(line.at("wrong"), 0);
    EXPECT_EQ(line.at("emulated"), false);
    EXPECT_TRUE(line.at("cables").is_array());
    for (const char* part : {"verbs", "copy", "reduce", "checksum", "protocol", "idle"}) {
      EXPECT_GE(line.at("ns_per_kib").at(part), 0) << part;
    }
    EXPECT_GT(line.at("ns_per_kib").at("memcpy"), 0);
  }
  EXPECT_THAT(result.output, HasSubstr("algbw"));
  EXPECT_THAT(result.output, HasSubstr("# Out of bounds values : 0 OK"));
  EXPECT_THAT(result.output, Not(HasSubstr("[1]")));  // rank 0 alone speaks
}

TEST_F(BenchProgram, EveryCollectiveIsRightInEverySize) {
  for (const char* collective : {"sendrecv", "allreduce", "allgather", "reducescatter", "broadcast"}) {
    for (const char* cables : {"", kFabric ? "2" : ""}) {
      const Result result = bench({collective, "-b", "0", "-e", "70K", "-f", "69", "-d", "bf16", "--check"}, cables, 3);
      EXPECT_EQ(result.code, 0) << result.error;
      EXPECT_EQ(lines().size(), 4u);
      for (const json& line : lines()) EXPECT_EQ(line.at("wrong"), 0) << collective << " " << line;
    }
  }
}

TEST_F(BenchProgram, CablesAreTold) {
  if (!kFabric) GTEST_SKIP();
  const Result result = bench({"allreduce", "-b", "4M", "--profile", "--lanes", "2"}, "3");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("emulated RDMA cables"), HasSubstr("rdma_en4>1")));
  ASSERT_EQ(lines().size(), 1u);
  const json line = lines()[0];
  EXPECT_EQ(line.at("emulated"), true);
  size_t bytes = 0;
  std::set<std::string> ids;
  for (const json& cable : line.at("cables")) {
    bytes += size_t(cable.at("bytes"));
    ids.insert(cable.at("id"));
  }
  EXPECT_THAT(ids, ElementsAre("rdma_en2", "rdma_en3", "rdma_en4"));
  EXPECT_GE(bytes, 4u << 20);
  double parts = 0;
  for (const auto& [name, value] : line.at("ns_per_kib").items()) parts += name == "memcpy" ? 0 : double(value);
  EXPECT_GT(parts, 0);
  EXPECT_LT(parts * 4096, 1.05 * double(line.at("time_us")) * 1e3);  // rank 0's, and the time of the slowest rank
}

TEST_F(BenchProgram, DamageIsRepairedOrElseCounted) {
  if (!kFabric) GTEST_SKIP();
  const std::vector<std::string> arguments = {"allreduce", "-b", "2M", "--check", "--crc"};
  const auto with = [&](const char* crc) {
    std::vector<std::string> all = arguments;
    all.push_back(crc);
    return bench(all, "1:damage=0.1,seed=3");
  };
  EXPECT_EQ(with("on").code, 0);
  EXPECT_EQ(lines().at(0).at("wrong"), 0);
  const Result result = with("off");
  EXPECT_EQ(result.code, 1);
  EXPECT_GT(lines().at(0).at("wrong"), 0);
  EXPECT_THAT(result.output, HasSubstr("FAILED"));
  EXPECT_THAT(result.error, HasSubstr("elements are wrong"));
}

TEST_F(BenchProgram, FlagsOfOneCollectiveWork) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"allreduce", "--in-place"}, {"sendrecv", "--one-way"}, {"broadcast", "--root", "1"}}) {
    std::vector<std::string> arguments = flags;
    arguments.insert(arguments.end(), {"-b", "100K", "-d", "u8", "--check"});
    const Result result = bench(arguments);
    EXPECT_EQ(result.code, 0) << result.error;
    ASSERT_EQ(lines().size(), 1u);
    EXPECT_EQ(lines()[0].at("wrong"), 0) << flags[0];
    EXPECT_EQ(lines()[0].at("bytes"), 102400);
  }
}

TEST_F(BenchProgram, FailsBelowTheBandwidthThatIsAskedFor) {
  EXPECT_EQ(bench({"allreduce", "-b", "64K", "--min-busbw", "1e-6"}).code, 0);
  const Result slow = bench({"allreduce", "-b", "64K", "--min-busbw", "1e9"});
  EXPECT_EQ(slow.code, 1);
  EXPECT_THAT(slow.error, HasSubstr("below --min-busbw"));
  EXPECT_EQ(lines().size(), 1u);  // what was measured is told all the same
}

const std::vector<std::string> kStep = {"step", "--layers",    "5", "--forward-ms",     "20",  "--backward-ms",
                                        "60",   "--update-ms", "5", "--gradient-bytes", "900K"};

TEST_F(BenchProgram, AStepIsTimedAndItsSumsAreRight) {
  for (const char* sync : {"overlap", "after"}) {
    for (const char* wire : {"float32", "bf16"}) {
      std::vector<std::string> arguments = kStep;
      arguments.insert(arguments.end(), {"--head-bytes", "100K", "--embedding-bytes", "70K", "--check", "--sync", sync,
                                         "--wire-dtype", wire});
      const Result result = bench(arguments, kFabric ? "2" : "", 3);
      EXPECT_EQ(result.code, 0) << result.error;
      EXPECT_THAT(result.output, AllOf(HasSubstr("emulated computation: a timer"), HasSubstr("are wrong: 0 OK")));
      ASSERT_EQ(lines().size(), 1u);
      const json line = lines()[0];
      EXPECT_EQ(line.at("wrong"), 0);
      EXPECT_EQ(line.at("emulated_computation"), true);
      EXPECT_EQ(line.at("gradient_bytes"), 900 << 10);
      EXPECT_EQ(line.at("steps").size(), 3u);
      EXPECT_GT(line.at("forward_s"), 0.019);
      EXPECT_GT(line.at("backward_s"), 0.05);
      EXPECT_GT(line.at("update_s"), 0.001);
      const double parts = double(line.at("forward_s")) + double(line.at("backward_s")) +
                           double(line.at("exposed_comm_s")) + double(line.at("update_s"));
      EXPECT_LE(parts, double(line.at("iteration_s")) + 1e-6);
      EXPECT_GE(line.at("hidden_fraction"), 0.0);
      const bool after = sync == std::string("after");
      EXPECT_LT(line.at("hidden_fraction"), after ? 0.05 : 1.0 + 1e-9);
      // All of the gradients, in the dtype of the wire: two thirds of them to each other rank, and back.
      uint64_t sent = 0;
      for (const json& cable : line.at("cables")) sent += uint64_t(cable.at("bytes"));
      const uint64_t whole = wire == std::string("bf16") ? 450u << 10 : 900u << 10;
      EXPECT_GE(sent, whole * 4 / 3 - (4 << 10));
    }
  }
}

TEST_F(BenchProgram, AStepOfAModelLeavesRanksWithTheSameWeights) {
  const std::string config = TRUNKLINE_SOURCE_DIR "/tests/golden/qwen3-untied/model/config.json";
  const Result result = bench({"step", "--model", config, "--rows", "2", "--tokens", "9", "--check"});
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("real computation"), HasSubstr("are wrong: 0 OK")));
  EXPECT_EQ(lines().at(0).at("emulated_computation"), false);
  const Result alone = bench({"step", "--model", config, "--tokens", "9", "--sync", "none"});
  EXPECT_EQ(alone.code, 0) << alone.error;
  EXPECT_EQ(lines().at(0).at("comm_s"), 0.0);
  EXPECT_EQ(lines().at(0).at("gather_s"), nullptr);
}

TEST_F(BenchProgram, AStepOfASharedOptimizerGathersItsWeights) {
  const std::string config = TRUNKLINE_SOURCE_DIR "/tests/golden/qwen3-untied/model/config.json";
  for (const char* sync : {"overlap", "after"}) {
    const Result result = bench(
        {"step", "--model", config, "--rows", "2", "--tokens", "9", "--shard-optimizer", "--sync", sync, "--check"},
        kFabric ? "2" : "", 3);
    EXPECT_EQ(result.code, 0) << result.error;
    EXPECT_THAT(result.output, AllOf(HasSubstr("SGD with a shared optimizer"), HasSubstr("# gathers of weights:"),
                                     HasSubstr("are wrong: 0 OK")));
    const json line = lines().at(0);
    EXPECT_EQ(line.at("wrong"), 0);
    EXPECT_EQ(line.at("shard_optimizer"), true);
    EXPECT_GT(line.at("first_gather_s"), 0.0);
    EXPECT_GT(line.at("gather_s"), line.at("first_gather_s"));
    EXPECT_GT(line.at("exposed_gather_s"), 0.0);  // the embedding's, at least
    EXPECT_GE(line.at("gather_hidden_fraction"), 0.0);
    EXPECT_LE(line.at("gather_hidden_fraction"), 1.0);
    double parts = 0.0;
    for (const char* part : {"forward_s", "backward_s", "exposed_comm_s", "exposed_gather_s", "update_s"}) {
      parts += double(line.at(part));
    }
    EXPECT_LE(parts, double(line.at("iteration_s")) + 1e-6);
  }
}

TEST_F(BenchProgram, AModelThatDoesNotFitIsRefusedBeforeItIsMade) {
  json config = json::parse(read_file(TRUNKLINE_SOURCE_DIR "/tests/golden/qwen3-untied/model/config.json"));
  config["vocab_size"] = 1 << 30;  // no machine has the memory for its embedding
  config["hidden_size"] = 1 << 16;
  write_file(file_, config.dump());
  for (const int ranks : {1, 2}) {
    const Result result =
        run({"launch", "-n", std::to_string(ranks), "--", kProgram, "bench", "step", "--model", file_});
    EXPECT_EQ(result.code, 1);
    EXPECT_THAT(result.error + result.output, HasSubstr("--model: a step takes at least"));
  }
}

TEST_F(BenchProgram, AStepThatMakesNoSenseIsRefused) {
  const auto refused = [](std::vector<std::string> arguments, const char* text) {
    arguments.insert(arguments.begin(), {"bench", "step"});
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 2) << text;
    EXPECT_THAT(result.error, HasSubstr(text));
  };
  refused({}, "--layers and --gradient-bytes are needed");
  refused({"--layers", "0", "--gradient-bytes", "1M"}, "--layers");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--forward-ms", "-1"}, "--forward-ms");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--forward-ms", "nan"}, "--forward-ms");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--timeout", "nan"}, "--timeout");
  refused({"--layers", "2", "--gradient-bytes", "1.5M"}, "is not a size");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--head-bytes", "900K", "--embedding-bytes", "200K"},
          "more than the 1048576 of --gradient-bytes");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--laps", "2"}, "--laps");
  refused({"--layers", "9", "--gradient-bytes", "1K"}, "less than 64 numbers a layer");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--sync", "never"}, "never");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--wire-dtype", "float16"}, "float16");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--rows", "2"}, "--rows");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--sync", "none", "--check"}, "nothing to check");
  refused({"--model", "no-such-file"}, "no-such-file");
  refused({"--layers", "2", "--gradient-bytes", "1M", "--shard-optimizer"}, "--shard-optimizer");
  refused({"--model", TRUNKLINE_SOURCE_DIR "/README.md", "--sync", "none", "--shard-optimizer"}, "nothing is shared");
}

TEST_F(BenchProgram, WhatIsThereIsNotWrittenOver) {
  const std::vector<std::string> step = {"bench", "step", "--layers", "2", "--gradient-bytes", "1M", "-n", "1"};
  const auto refused = [&](const std::string& flag, const std::string& file, int code, const char* text) {
    std::vector<std::string> arguments = step;
    arguments.insert(arguments.end(), {flag, file});
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << flag << " " << file;
    EXPECT_THAT(result.error, AllOf(HasSubstr(flag), HasSubstr(text)));
  };
  write_file(file_, "{\"text\": \"a row\"}\n");
  refused("--trace", file_, 1, "is not a trace");
  refused("--trace", std::filesystem::temp_directory_path(), 1, "is not a trace");
  refused("--trace", "/nowhere/t.json", 1, "No such file");
  refused("--trace", "", 2, "the name of a file");
  refused("--json", file_, 1, "does not hold a benchmark's lines");
  refused("--json", "", 2, "the name of a file");
  EXPECT_EQ(read_file(file_), "{\"text\": \"a row\"}\n");
}

TEST_F(BenchProgram, OneRankAlone) {
  EXPECT_EQ(run({"bench", "allgather", "-b", "1K", "-n", "2", "--check"}).code, 0);
  const Result result = run({"bench", "sendrecv", "-b", "1K"});
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.error, HasSubstr("launch -n 2"));
}

TEST_F(BenchProgram, RefusesWhatMakesNoSense) {
  const auto refused = [](std::vector<std::string> arguments, int code, const char* text) {
    arguments.insert(arguments.begin(), "bench");
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << text;
    EXPECT_THAT(result.error, HasSubstr(text));
    EXPECT_EQ(result.output, "");
  };
  refused({}, 2, "bench needs a command");
  refused({"allsum"}, 2, "");
  refused({"allreduce", "-b", "1.5K"}, 2, "\"1.5K\" is not a size");
  refused({"allreduce", "-b", "2K", "-e", "1K"}, 2, "more than");
  refused({"allreduce", "-f", "1"}, 2, "1");
  refused({"allreduce", "-i", "0"}, 2, "-i 0");
  refused({"allreduce", "-i", "4K", "-f", "2"}, 2, "excludes");
  refused({"allreduce", "-n", "0"}, 2, "0");
  refused({"allreduce", "-d", "float8"}, 2, "float8");
  refused({"allreduce", "--workers", "many"}, 2, "many");
  refused({"allreduce", "--lanes", "11"}, 2, "11");
  refused({"allreduce", "--crc", "maybe"}, 2, "maybe");
  refused({"allreduce", "--one-way"}, 2, "--one-way");
  refused({"broadcast", "--root", "1"}, 1, "--root 1");
  refused({"allreduce", "--json", "/nonexistent/file"}, 1, "/nonexistent/file");
  refused({"allreduce", "-b", "9999999G"}, 1, "memory");
}

}  // namespace
}  // namespace trunkline
