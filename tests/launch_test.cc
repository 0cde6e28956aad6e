// `trunkline launch` as a program: what is left when it is killed, what ranks find in their environment, what it
// refuses.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include "base/file.h"
#include "base/process.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::UnorderedElementsAre;
using Stream = ProcessOptions::Stream;

const std::string kProgram = TRUNKLINE_BINARY_DIR "/trunkline";

ProcessOptions trunkline(std::vector<std::string> arguments) {
  ProcessOptions options;
  options.argv = std::move(arguments);
  options.argv.insert(options.argv.begin(), kProgram);
  options.input = Stream::null;
  options.output = Stream::pipe;
  options.error = Stream::pipe;
  return options;
}

// A job of `ranks` shells.
ProcessOptions job(int ranks, const std::string& script) {
  return trunkline({"launch", "-n", std::to_string(ranks), "--", "sh", "-c", script});
}

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

  std::multiset<std::string> lines() const {
    std::multiset<std::string> result;
    std::istringstream text(output);
    for (std::string line; std::getline(text, line);) result.insert(line);
    return result;
  }
};

Result finish(Process& process) {
  Result result;
  result.output = read_all(process.output);
  result.error = read_all(process.error);
  const auto status = process.wait(Deadline::after(30s));
  result.code = status ? status->code : -1;
  return result;
}

Result run(const ProcessOptions& options) {
  Process process = Process::start(options);
  return finish(process);
}

// What it says until that.
std::string await(const Process& process, const std::string& text) {
  std::string said;
  char byte;
  while (said.find(text) == std::string::npos && ::read(process.output.get(), &byte, 1) == 1) said += byte;
  EXPECT_THAT(said, HasSubstr(text));
  return said;
}

// A pipe that the launcher, its guard and all that they start hold: its end comes when the last of them is gone.
class Held {
 public:
  explicit Held(ProcessOptions& options) : pipe_(make_pipe()) { options.inherit = {pipe_.write.get()}; }

  bool all_gone(std::chrono::seconds limit) {
    pipe_.write.reset();
    char byte;
    pollfd wait{pipe_.read.get(), POLLIN, 0};
    const int limit_ms = static_cast<int>(std::chrono::milliseconds(limit).count());
    return ::poll(&wait, 1, limit_ms) == 1 && ::read(pipe_.read.get(), &byte, 1) == 0;
  }

 private:
  Pipe pipe_;
};

// --- nobody is left behind

TEST(LaunchProgram, LeavesNobodyWhenItIsKilled) {
  ProcessOptions options = job(3, "sleep 100 & echo ready; wait");
  Held held(options);
  Process process = Process::start(options);
  for (int rank = 0; rank < 3; ++rank) await(process, "ready\n");
  process.signal(SIGKILL);
  EXPECT_TRUE(held.all_gone(10s));
}

TEST(LaunchProgram, KillsThoseWhoIgnoreTheEndOfTheLauncher) {
  ProcessOptions options = job(2, "trap '' TERM HUP INT; (trap '' TERM; sleep 100) & echo ready; wait; wait");
  Held held(options);
  Process process = Process::start(options);
  for (int rank = 0; rank < 2; ++rank) await(process, "ready\n");
  const auto start = Clock::now();
  process.signal(SIGKILL);
  EXPECT_TRUE(held.all_gone(10s));
  EXPECT_GE(seconds_since(start), 2.9);
}

TEST(LaunchProgram, LeavesNobodyWhenItIsKilledWhileItStarts) {
  std::vector<std::unique_ptr<Held>> jobs;
  for (int moment_ms = 0; moment_ms < 24; moment_ms += 2) {
    ProcessOptions options = job(6, "sleep 100 & wait");
    jobs.push_back(std::make_unique<Held>(options));
    Process process = Process::start(options);
    std::this_thread::sleep_for(std::chrono::milliseconds(moment_ms));
    process.signal(SIGKILL);
  }
  for (size_t i = 0; i < jobs.size(); ++i) EXPECT_TRUE(jobs[i]->all_gone(10s)) << "killed after " << 2 * i << " ms";
}

#ifdef __linux__
// The processes whose command line has this text in it.
std::vector<pid_t> processes_named(const std::string& text) {
  std::vector<pid_t> result;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    try {
      if (pid > 0 && read_file(entry.path() / "cmdline").find(text) != std::string::npos) result.push_back(pid);
    } catch (const std::exception&) {
      // It has gone meanwhile.
    }
  }
  return result;
}

// As `pkill -KILL -f 'trunkline launch ...'` does it.
TEST(LaunchProgram, HasAGuardThatIsNotKilledByItsName) {
  const auto logs = std::filesystem::temp_directory_path() / ("launch-by-name-" + std::to_string(::getpid()));
  ProcessOptions options =
      trunkline({"launch", "-n", "2", "--log-dir", logs.string(), "--", "sh", "-c", "sleep 100 & echo ready; wait"});
  Held held(options);
  Process process = Process::start(options);
  for (int rank = 0; rank < 2; ++rank) await(process, "ready\n");
  const auto named = processes_named(logs.string());
  EXPECT_THAT(named, testing::ElementsAre(process.pid()));
  for (const pid_t pid : named) ::kill(pid, SIGKILL);
  EXPECT_TRUE(held.all_gone(10s));
  std::filesystem::remove_all(logs);
}

bool has_ended(pid_t pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  return stat[stat.rfind(')') + 2] == 'Z';
}

// Rank 0 exits with 1 since rank 1 is killed, and the launcher sees both at once.
TEST(LaunchProgram, TakesTheCrashForTheCause) {
  const auto go = std::filesystem::temp_directory_path() / ("launch-go-" + std::to_string(::getpid()));
  Process process = Process::start(job(2, "echo $$ ready; until [ -e " + go.string() +
                                              " ]; do sleep 0.01; done; "
                                              "[ $MLX_RANK = 0 ] && exit 1; kill -KILL $$"));
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 2; ++rank) ranks.push_back(std::atoi(await(process, " ready\n").substr(4).c_str()));
  process.signal(SIGSTOP);
  write_file(go, "");
  for (const pid_t rank : ranks) {
    for (const Deadline deadline = Deadline::after(20s); !has_ended(rank) && !deadline.expired();) {
      std::this_thread::sleep_for(5ms);
    }
  }
  process.signal(SIGCONT);
  EXPECT_EQ(finish(process).code, 128 + SIGKILL);
  std::filesystem::remove(go);
}
#endif

TEST(LaunchProgram, LeavesNobodyAfterAFailure) {
  ProcessOptions options = job(2, "[ $MLX_RANK = 1 ] && exit 3; sleep 100 & echo $MLX_RANK; exit 0");
  Held held(options);
  EXPECT_EQ(run(options).code, 3);
  EXPECT_TRUE(held.all_gone(1s));
}

// --- what ranks find

TEST(LaunchProgram, GivesEachJobAKey) {
  std::set<std::string> keys;
  for (int i = 0; i < 2; ++i) {
    const Result result = run(job(2, "echo $TRUNKLINE_JOB_KEY"));
    EXPECT_EQ(result.code, 0);
    const auto first = result.output.substr(4, 64);
    EXPECT_THAT(result.lines(), UnorderedElementsAre("[0] " + first, "[1] " + first));
    EXPECT_EQ(first.find_first_not_of("0123456789abcdef"), std::string::npos);
    keys.insert(first);
  }
  EXPECT_EQ(keys.size(), 2u);
}

TEST(LaunchProgram, DividesTheCores) {
  ProcessOptions options = job(1, "echo $OPENBLAS_NUM_THREADS $OMP_NUM_THREADS");
  options.environment = {{"OPENBLAS_NUM_THREADS", std::nullopt}, {"OMP_NUM_THREADS", std::nullopt}};
  std::istringstream one(run(options).output.substr(4));
  int cores = 0, same = 0;
  one >> cores >> same;
  EXPECT_GE(cores, 1);
  EXPECT_EQ(cores, same);
  options.argv[3] = "2";
  const std::string half = std::to_string(std::max(1, cores / 2));
  EXPECT_THAT(run(options).lines(), UnorderedElementsAre("[0] " + half + " " + half, "[1] " + half + " " + half));
  options.environment = {{"OPENBLAS_NUM_THREADS", "7"}, {"OMP_NUM_THREADS", "5"}};
  EXPECT_THAT(run(options).lines(), UnorderedElementsAre("[0] 7 5", "[1] 7 5"));
}

TEST(LaunchProgram, HandsRankZeroTheSocket) {
  const Result result =
      run(job(2, "[ -S /dev/fd/${TRUNKLINE_LISTEN_FD:-none} ] && echo has; echo $MLX_JACCL_COORDINATOR"));
  EXPECT_THAT(result.output, AllOf(HasSubstr("[0] has\n"), Not(HasSubstr("[1] has\n")), HasSubstr("[1] 127.0.0.1:")));
}

TEST(LaunchProgram, OverridesThePlaceInAnotherJob) {
  ProcessOptions options = trunkline({"launch", "-n", "1", "--", kProgram, "launch", "-n", "2", "--", "sh", "-c",
                                      "echo $MLX_RANK$JACCL_RANK of $MLX_WORLD_SIZE"});
  options.environment = {{"MLX_RANK", "7"}, {"MLX_WORLD_SIZE", "9"}, {"JACCL_RANK", "5"}};
  const Result result = run(options);
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.lines(), UnorderedElementsAre("[0] [0] 0 of 2", "[0] [1] 1 of 2"));
}

TEST(LaunchProgram, GivesItsInputToRankZero) {
  ProcessOptions options = job(2, "cat; echo end");
  options.input = Stream::pipe;
  Process process = Process::start(options);
  ASSERT_EQ(::write(process.input.get(), "typed\n", 6), 6);
  process.input.reset();
  EXPECT_THAT(finish(process).lines(), UnorderedElementsAre("[0] typed", "[0] end", "[1] end"));
}

TEST(LaunchProgram, RunsWithoutStandardStreams) {
  const auto file = std::filesystem::temp_directory_path() / ("launch-closed-" + std::to_string(::getpid()));
  ProcessOptions options;
  options.argv = {"sh", "-c",     "exec \"$@\" <&- >&- 2>&-",
                  "sh", kProgram, "launch",
                  "-n", "2",      "--",
                  "sh", "-c",     "echo said; echo rank $MLX_RANK >> " + file.string()};
  EXPECT_EQ(Process::start(options).wait(Deadline::after(10s))->code, 0);
  EXPECT_THAT(read_file(file), AllOf(HasSubstr("rank 0\n"), HasSubstr("rank 1\n")));
  std::filesystem::remove(file);
}

// As a shell without job control starts it in the background.
TEST(LaunchProgram, HearsAnInterruptThatWasIgnoredBefore) {
  ProcessOptions options = job(1, "trap 'echo heard; exit 0' INT; echo ready; while :; do sleep 0.01; done");
  options.ignore_interrupt = true;
  Process process = Process::start(options);
  await(process, "ready\n");
  process.signal(SIGINT);
  const Result result = finish(process);
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.output, "[0] heard\n");
}

// --- the command line

TEST(LaunchProgram, ExitsWithTheRanksCode) {
  EXPECT_EQ(run(job(2, "exit 0")).code, 0);
  EXPECT_EQ(run(job(2, "[ $MLX_RANK = 1 ] && exit 41; exit 0")).code, 41);
  EXPECT_EQ(run(job(1, "kill -ABRT $$")).code, 128 + SIGABRT);
}

TEST(LaunchProgram, SaysThatTheProgramIsMissing) {
  const Result result = run(trunkline({"launch", "-n", "2", "--", "no-such-program-here"}));
  EXPECT_EQ(result.code, 127);
  EXPECT_THAT(result.error, HasSubstr("no-such-program-here"));
}

TEST(LaunchProgram, RefusesWhatMakesNoSense) {
  const auto refused = [](std::vector<std::string> arguments, const std::string& because) {
    arguments.insert(arguments.begin(), "launch");
    const Result result = run(trunkline(arguments));
    EXPECT_EQ(result.code, 2) << testing::PrintToString(arguments);
    EXPECT_EQ(result.output, "");
    EXPECT_THAT(result.error, HasSubstr(because));
  };
  refused({"-n", "0", "--", "echo"}, "-n");
  refused({"-n", "-1", "--", "echo"}, "-n");
  refused({"-n", "two", "--", "echo"}, "-n");
  refused({"--", "echo"}, "-n");
  refused({"-n", "2"}, "comes after --");
  refused({"-n", "2", "--"}, "comes after --");
  refused({"-n", "2", "echo", "x"}, "comes after --");
  refused({"-n", "2", "--cables", "2:speed=3", "--", "echo"}, "speed=3");
  refused({"-n", "2", "--cables", "", "--", "echo"}, "--cables");
  refused({"-n", "2", "--cables", "2", "--fabric", "file", "--", "echo"}, "--fabric");
}

TEST(Program, TellsItsVersionAndWhatComputes) {
  const Result result = run(trunkline({"--version"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output, testing::StartsWith("trunkline "));
  EXPECT_THAT(result.output, AllOf(HasSubstr("\nmlx 0.32.4, device "), HasSubstr(", BLAS ")));
}

TEST(Program, RefusesACommandThatItDoesNotHave) {
  const auto refused = [](const std::vector<std::string>& arguments, const std::string& line) {
    const Result result = run(trunkline(arguments));
    EXPECT_EQ(result.code, 2) << line;
    EXPECT_EQ(result.error, line);
  };
  const std::string commands = "train, generate, fuse, launch, bench\n";
  refused({}, "trunkline: trunkline needs a command: its commands are " + commands);
  refused({"trian", "--model", "m"}, "trunkline: trunkline has no command \"trian\": its commands are " + commands);
  refused({"--modle", "m"}, "trunkline: trunkline has no option --modle\n");
  refused({"bench", "alreduce", "-b", "1K"},
          "trunkline: bench has no command \"alreduce\": its commands are sendrecv, allreduce, allgather, "
          "reducescatter, broadcast, step\n");
  EXPECT_EQ(run(trunkline({"--help"})).code, 0);
}

}  // namespace
}  // namespace trunkline
