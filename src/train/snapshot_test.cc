#include "train/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>

#include "base/fail.h"
#include "base/file.h"
#include "base/process.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<TensorShape> kLayout = {{"a", {64, 64}}, {"b", {8}}};
const std::vector<Fact> kFacts = {{"seed", "3"}, {"train.jsonl", "5 rows"}};

mx::array filled(mx::Shape shape, double value) {
  mx::array array = mx::contiguous(mx::full(std::move(shape), static_cast<float>(value)));
  array.eval();
  return array;
}

Snapshot made_at(int64_t step) {
  const double value = static_cast<double>(step);
  return {.state = {.step = step,
                    .trained_tokens = 10 * step,
                    .skipped_steps = 2,
                    .best = {.loss = 1.0 / 3.0, .step = 4, .worse_since = 1},
                    .memory_limits = {int64_t{1} << 40, 7},
                    .losses = {0.1, 1e-300},
                    .grad_norms = {2.0 / 3.0}},
          .seed = 3,
          .ranks = 2,
          .version = "0",
          .facts = kFacts,
          .weights = {filled({64, 64}, value), filled({8}, value + 0.5)},
          .optimizer = {{"a.m", filled({64, 64}, -value)}, {"b.m", filled({8}, -value)}}};
}

class SnapshotTest : public ::testing::Test {
 protected:
  SnapshotTest() { fs::create_directories(output_); }
  ~SnapshotTest() override { fs::remove_all(output_); }

  std::optional<Snapshot> newest() {
    warnings_.clear();
    return store_.load_newest(kFacts, warnings_);
  }
  void expect_whole(const Snapshot& snapshot) {
    const Snapshot expected = made_at(snapshot.state.step);
    EXPECT_EQ(snapshot.state.trained_tokens, expected.state.trained_tokens);
    EXPECT_EQ(snapshot.state.skipped_steps, 2);
    EXPECT_EQ(snapshot.state.best.loss, expected.state.best.loss);
    EXPECT_EQ(snapshot.state.best.step, 4);
    EXPECT_EQ(snapshot.state.best.worse_since, 1);
    EXPECT_EQ(snapshot.state.memory_limits, expected.state.memory_limits);
    EXPECT_EQ(snapshot.state.losses, expected.state.losses);
    EXPECT_EQ(snapshot.state.grad_norms, expected.state.grad_norms);
    for (size_t i = 0; i < kLayout.size(); ++i) {
      EXPECT_TRUE(mx::array_equal(snapshot.weights[i], expected.weights[i]).item<bool>());
      EXPECT_TRUE(mx::array_equal(snapshot.optimizer[i].second, expected.optimizer[i].second).item<bool>());
    }
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(output_ / "checkpoints")) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }

  const fs::path output_ =
      fs::temp_directory_path() /
      fmt::format("trunkline-{}-{}", ::testing::UnitTest::GetInstance()->current_test_info()->name(), ::getpid());
  SnapshotStore store_{output_, kLayout, 2};
  std::vector<std::string> warnings_;
};

TEST_F(SnapshotTest, ComesBackAsItWasAndTheNewestStay) {
  EXPECT_FALSE(newest().has_value());
  for (const int64_t step : {5, 90, 100}) store_.save(made_at(step));
  EXPECT_THAT(store_.steps(), ElementsAre(90, 100));
  const auto snapshot = newest();
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->state.step, 100);
  EXPECT_EQ(snapshot->ranks, 2);
  expect_whole(*snapshot);
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SnapshotTest, TheBestStaysToo) {
  store_.save(made_at(10), 10);
  for (const int64_t step : {20, 30, 40}) store_.save(made_at(step), 10);
  EXPECT_THAT(store_.steps(), ElementsAre(10, 30, 40));
  EXPECT_TRUE(mx::array_equal(store_.load_weights(10)[0], made_at(10).weights[0]).item<bool>());
  store_.save(made_at(50), 30);
  EXPECT_THAT(store_.steps(), ElementsAre(30, 40, 50));
  EXPECT_THROW(store_.load_weights(10), Error);
}

TEST_F(SnapshotTest, ADamagedOneIsSetAside) {
  store_.save(made_at(1));
  store_.save(made_at(2));
  std::fstream file(store_.path_of(2) / "weights.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  ASSERT_TRUE(file.is_open());
  file.seekp(4000);
  file.put('\x55');
  file.close();
  auto snapshot = newest();
  ASSERT_TRUE(snapshot.has_value());
  EXPECT_EQ(snapshot->state.step, 1);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("checkpoint 2 is damaged"));
  EXPECT_THAT(names(), ElementsAre("1", "2.damaged"));

  fs::remove(store_.path_of(1) / "optimizer.safetensors");
  EXPECT_FALSE(newest().has_value());
}

TEST_F(SnapshotTest, OneThatIsAskedForIsWholeOrSetAside) {
  for (const int64_t step : {1, 2}) store_.save(made_at(step));
  fs::resize_file(store_.path_of(1) / "optimizer.safetensors", 10);
  EXPECT_TRUE(store_.holds(2, warnings_));
  EXPECT_FALSE(store_.holds(3, warnings_));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_FALSE(store_.holds(1, warnings_));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("checkpoint 1 is damaged")));
  EXPECT_THAT(names(), ElementsAre("1.damaged", "2"));
  EXPECT_FALSE(store_.holds(1, warnings_));
  EXPECT_EQ(warnings_.size(), 1u);
}

TEST_F(SnapshotTest, OneOfAnotherRunIsRefusedAndKept) {
  store_.save(made_at(1));
  try {
    std::vector<std::string> warnings;
    store_.load_newest({{"seed", "4"}, {"train.jsonl", "5 rows"}}, warnings);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::mismatch);
    EXPECT_THAT(error.what(), HasSubstr("seed: 3 there, 4 here"));
  }
  EXPECT_THAT(store_.steps(), ElementsAre(1));
}

// The next two run as programs of their own, in the folder that the tests after them give them.
class DISABLED_SnapshotProgram : public ::testing::Test {
 protected:
  SnapshotStore store_{fs::current_path(), kLayout, 2};
};

TEST_F(DISABLED_SnapshotProgram, SavesUntilKilled) {
  fmt::print("saving\n");
  std::fflush(stdout);
  for (int64_t step = 2;; ++step) store_.save(made_at(step));
}

TEST_F(DISABLED_SnapshotProgram, SavesOnAFullDisk) {
  // As a disk that takes 6000 bytes more: writing past them fails.
  ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit limit = {6000, 6000};
  ::setrlimit(RLIMIT_FSIZE, &limit);
  try {
    store_.save(made_at(2));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::system);
    EXPECT_THAT(error.what(), HasSubstr("weights.safetensors"));
  }
}

Process start_program(const std::string& name, const fs::path& folder) {
  ProcessOptions options;
  options.argv = {::testing::internal::GetArgvs()[0], "--gtest_also_run_disabled_tests",
                  "--gtest_filter=DISABLED_SnapshotProgram." + name};
  options.directory = folder;
  options.output = ProcessOptions::Stream::pipe;
  return Process::start(options);
}

void wait_for_line(const Process& process, const std::string& line) {
  std::string seen;
  char byte = 0;
  while (seen.find(line) == std::string::npos && ::read(process.output.get(), &byte, 1) == 1) seen += byte;
  ASSERT_THAT(seen, HasSubstr(line));
}

TEST_F(SnapshotTest, AKillAtAnyMomentOfASaveLeavesAWholeOne) {
  int64_t furthest = 0;
  for (int kill = 0; kill < 20; ++kill) {
    fs::remove_all(output_ / "checkpoints");
    store_.save(made_at(1));
    Process program = start_program("SavesUntilKilled", output_);
    wait_for_line(program, "saving\n");
    // The last one saves at least once, however slow the machine.
    const bool must_save = kill == 19 && furthest == 1;
    ::usleep(must_save ? 3'000'000 : static_cast<useconds_t>(500 + 2300 * kill));
    program.signal(SIGKILL);
    ASSERT_TRUE(program.wait(Deadline::after(std::chrono::seconds(20))).has_value());
    const auto snapshot = newest();
    ASSERT_TRUE(snapshot.has_value()) << kill;
    EXPECT_THAT(warnings_, IsEmpty());
    expect_whole(*snapshot);
    furthest = std::max(furthest, snapshot->state.step);
    store_.clean();
    for (const std::string& name : names()) EXPECT_EQ(name.find(".part"), std::string::npos) << name;
  }
  EXPECT_GT(furthest, 1);
}

TEST_F(SnapshotTest, AFullDiskKeepsTheOlderOne) {
  store_.save(made_at(1));
  Process program = start_program("SavesOnAFullDisk", output_);
  const auto status = program.wait(Deadline::after(std::chrono::seconds(20)));
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->code, 0);
  EXPECT_THAT(names(), ElementsAre("1"));
  const auto snapshot = newest();
  ASSERT_TRUE(snapshot.has_value());
  expect_whole(*snapshot);
}

}  // namespace
}  // namespace trunkline
