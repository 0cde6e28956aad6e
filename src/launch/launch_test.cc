// Jobs whose ranks are shell scripts, with short patience. What needs a launcher of its own to kill is in
// tests/launch_test.cc.
#include "launch/launch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/fail.h"
#include "base/fd.h"
#include "base/file.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace std::string_literals;

class Launch : public testing::Test {
 protected:
  Launch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trunkline-launch-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    out_ = open("out");
    err_ = open("err");
    options_.patience = {.after_failure = 300ms, .after_terminate = 300ms, .after_end = 100ms};
    options_.output = out_.get();
    options_.error = err_.get();
  }
  ~Launch() override { std::filesystem::remove_all(directory_); }

  Fd open(const std::string& name) {
    return Fd(::open((directory_ / name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }

  // The exit code of a job in which every rank runs `script`, with its rank in $R.
  int launch_script(int ranks, const std::string& script) {
    options_.ranks = ranks;
    options_.program = {"sh", "-c", "R=$MLX_RANK\n" + script};
    const auto start = Clock::now();
    const int code = launch(options_);
    took_ = Clock::now() - start;
    return code;
  }

  // The same, with these signals sent once `awaited` has been said, and each further one once `pause` has passed.
  int launch_and_signal(int ranks, const std::string& script, const std::string& awaited, std::vector<int> signals) {
    std::thread sender([&] {
      for (const Deadline deadline = Deadline::after(10s); !deadline.expired(); std::this_thread::sleep_for(5ms)) {
        if (said().find(awaited) != std::string::npos) break;
      }
      for (const int number : signals) {
        ::kill(::getpid(), number);
        std::this_thread::sleep_for(100ms);
      }
    });
    const int code = launch_script(ranks, script);
    sender.join();
    return code;
  }

  std::string said() { return read_file(directory_ / "out"); }
  std::string complained() { return read_file(directory_ / "err"); }

  std::filesystem::path directory_;
  Fd out_, err_;
  LaunchOptions options_;
  Clock::duration took_{};
};

TEST_F(Launch, PrefixesLinesOfBothStreams) {
  EXPECT_EQ(launch_script(2, "echo \"one $R\"; echo; printf 'tail $R'; echo \"bad $R\" >&2"), 0);
  for (const std::string rank : {"0", "1"}) {
    const std::string prefix = fmt::format("[{}] ", rank);
    EXPECT_THAT(said(), HasSubstr(prefix + "one " + rank + "\n"));
    EXPECT_THAT(said(), HasSubstr(prefix + "\n"));
    EXPECT_THAT(said(), HasSubstr(prefix + "tail $R\n"));
    EXPECT_THAT(complained(), HasSubstr(prefix + "bad " + rank + "\n"));
  }
  EXPECT_THAT(said(), Not(HasSubstr("bad")));
}

TEST_F(Launch, KeepsTheOrderOfARanksLines) {
  EXPECT_EQ(launch_script(3, "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); echo $i; done"), 0);
  std::istringstream lines(said());
  int next[3] = {1, 1, 1};
  for (std::string line; std::getline(lines, line);) {
    const int rank = line[1] - '0';
    ASSERT_EQ(line, fmt::format("[{}] {}", rank, next[rank]++));
  }
  EXPECT_THAT(next, testing::Each(2001));
}

TEST_F(Launch, PassesALineOnAtOnce) {
  // The rank goes on only after its line has come out.
  EXPECT_EQ(launch_script(1, "echo ready; until grep -q ready " + (directory_ / "out").string() +
                                 "; do sleep 0.01; done; echo seen"),
            0);
  EXPECT_EQ(said(), "[0] ready\n[0] seen\n");
}

TEST_F(Launch, CarriesLongLinesAndAnyBytes) {
  EXPECT_EQ(launch_script(2, "head -c 300000 /dev/zero | tr '\\0' \"$R\"; echo; printf '\\377\\000x\\n'"), 0);
  for (const char rank : {'0', '1'}) {
    EXPECT_THAT(said(), HasSubstr(std::string("[") + rank + "] " + std::string(300000, rank) + "\n"));
    EXPECT_THAT(said(), HasSubstr(std::string("[") + rank + "] \xff\0x\n"s));
  }
}

TEST_F(Launch, WritesALogForEachRank) {
  options_.log_directory = directory_ / "deep" / "logs";
  EXPECT_EQ(launch_script(2, "echo \"out $R\"; sleep 0.1; printf \"err $R\" >&2"), 0);
  EXPECT_EQ(read_file(options_.log_directory / "rank-0.log"), "out 0\nerr 0\n");
  EXPECT_EQ(read_file(options_.log_directory / "rank-1.log"), "out 1\nerr 1\n");
}

TEST_F(Launch, RefusesALogDirectoryThatCannotBe) {
  options_.log_directory = directory_ / "out" / "logs";
  EXPECT_THAT([&] { launch_script(2, "echo started"); },
              testing::ThrowsMessage<Error>(AllOf(HasSubstr("--log-dir"), HasSubstr("out/logs"))));
  EXPECT_EQ(said(), "");
}

TEST_F(Launch, GivesTheProgramItsArguments) {
  options_.ranks = 1;
  options_.program = {"printf", "<%s>", "a b", "--", "-n", ""};
  EXPECT_EQ(launch(options_), 0);
  EXPECT_EQ(said(), "[0] <a b><--><-n><>\n");
}

TEST_F(Launch, SaysThatTheProgramIsMissing) {
  options_.ranks = 2;
  options_.program = {"no-such-program-here"};
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(options_), 127);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("no-such-program-here"));
}

TEST_F(Launch, StartsAJobOfAtLeastOne) {
  options_.program = {"true"};
  options_.ranks = 0;
  EXPECT_THAT([&] { launch(options_); }, testing::ThrowsMessage<Error>(HasSubstr("-n 0")));
}

// --- endings

TEST_F(Launch, LetsSurvivorsSayWhatTheySaw) {
  EXPECT_EQ(launch_script(3, "[ $R = 1 ] && exit 7; sleep 0.1; echo \"$R saw it\"; exit 5"), 7);
  EXPECT_THAT(said(), AllOf(HasSubstr("[0] 0 saw it\n"), HasSubstr("[2] 2 saw it\n")));
  EXPECT_THAT(complained(), HasSubstr("rank 1 exited with code 7; the others have 0.3 s"));
  EXPECT_THAT(complained(), HasSubstr("rank 0 exited with code 5\n"));
}

TEST_F(Launch, SaysWhatARankSaidBeforeItsEnd) {
  options_.error = options_.output;
  EXPECT_EQ(launch_script(1, "echo last words; exit 9"), 9);
  EXPECT_EQ(said(), "[0] last words\ntrunkline launch: rank 0 exited with code 9\n");
}

TEST_F(Launch, EndsSurvivorsThatDoNot) {
  EXPECT_EQ(launch_script(2, "[ $R = 0 ] && exit 3; trap 'echo told; exit 0' TERM; while :; do sleep 0.01; done"), 3);
  EXPECT_THAT(said(), HasSubstr("[1] told\n"));
  EXPECT_THAT(complained(), HasSubstr("rank 1 did not end within 0.3 s"));
  EXPECT_GE(took_, 300ms);
  EXPECT_LT(took_, 5s);
}

TEST_F(Launch, KillsSurvivorsThatIgnoreBeingTold) {
  EXPECT_EQ(launch_script(2, "[ $R = 0 ] && kill -SEGV $$; trap '' TERM; while :; do sleep 0.01; done"), 128 + SIGSEGV);
  EXPECT_THAT(complained(), HasSubstr("rank 0 was killed by signal 11"));
  EXPECT_GE(took_, 600ms);
  EXPECT_LT(took_, 5s);
}

TEST_F(Launch, ReturnsTheFirstFailure) {
  EXPECT_EQ(launch_script(3, "case $R in 2) exit 42;; 1) sleep 0.1; exit 43;; 0) exit 0;; esac"), 42);
}

TEST_F(Launch, TakesACrashForTheCauseOfAnExitJustBefore) {
  const std::string script = "[ $R = 0 ] && exit 5; until grep -q 'rank 0 exited' " + (directory_ / "err").string() +
                             "; do sleep 0.01; done; kill -KILL $$";
  options_.patience.after_failure = options_.patience.same_moment = 20s;
  const auto again = [&](const std::string& changed) {
    EXPECT_EQ(::truncate((directory_ / "err").c_str(), 0), 0);
    return launch_script(2, changed);
  };
  EXPECT_EQ(launch_script(2, script), 128 + SIGKILL);
  // What a broken connection brings about is no cause.
  EXPECT_EQ(again(std::string(script).replace(script.find("KILL"), 4, "ABRT")), 5);
  options_.patience.same_moment = 0ms;
  EXPECT_EQ(again(script), 5);
}

TEST_F(Launch, GoesOnWhenARankEndsWell) {
  EXPECT_EQ(launch_script(2, "[ $R = 0 ] && exit 0; sleep 0.5; echo done"), 0);
  EXPECT_EQ(said(), "[1] done\n");
}

// Every process that has `held` open is gone.
bool closes(const Fd& held) {
  char byte;
  pollfd wait{held.get(), POLLIN, 0};
  return ::poll(&wait, 1, 5'000) == 1 && ::read(held.get(), &byte, 1) == 0;
}

TEST_F(Launch, EndsWhatARankLeavesBehind) {
  Pipe held = make_pipe();
  ::fcntl(held.write.get(), F_SETFD, 0);
  EXPECT_EQ(launch_script(2, "(trap '' TERM HUP; sleep 100) & exit 0"), 0);
  held.write.reset();
  EXPECT_TRUE(closes(held.read));
  EXPECT_THAT(complained(), HasSubstr("left processes behind"));
  EXPECT_LT(took_, 5s);
}

TEST_F(Launch, DoesNotWaitForOthersThatHoldItsPipes) {
  // In a group of their own: they are none of ours.
  const auto pid_file = (directory_ / "pid").string();
  EXPECT_EQ(launch_script(1, "set -m; sleep 20 & echo $! > " + pid_file + "; echo said"), 0);
  EXPECT_EQ(said(), "[0] said\n");
  EXPECT_LT(took_, 5s);
  ::kill(std::atoi(read_file(pid_file).c_str()), SIGKILL);
}

// --- signals

TEST_F(Launch, PassesTheFirstInterruptOnAndWaits) {
  // Longer than any patience; the shells' own sleeps end by the interrupt, since the whole group gets it.
  const std::string script = "trap 'sleep 1; echo \"saved $R\"; exit 0' INT; echo ready; while :; do sleep 0.01; done";
  EXPECT_EQ(launch_and_signal(1, script, "[0] ready", {SIGINT}), 0);
  EXPECT_EQ(said(), "[0] ready\n[0] saved 0\n");
  EXPECT_THAT(complained(), HasSubstr("Ctrl-C"));
}

TEST_F(Launch, WaitsForTheOthersWhenOneIsEndedByTheInterrupt) {
  const std::string script =
      "[ $R = 1 ] && exec sleep 100; trap 'sleep 1; echo saved; exit 0' INT; echo ready; "
      "while :; do sleep 0.01; done";
  EXPECT_EQ(launch_and_signal(2, script, "[0] ready", {SIGINT}), 128 + SIGINT);
  EXPECT_THAT(said(), HasSubstr("[0] saved"));
}

TEST_F(Launch, EndsAtTheSecondInterrupt) {
  const std::string script = "trap '' INT; trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
  EXPECT_EQ(launch_and_signal(1, script, "[0] ready", {SIGINT, SIGINT}), 128 + SIGINT);
  EXPECT_EQ(said(), "[0] ready\n[0] told\n");
}

TEST_F(Launch, EndsAtOnceWhenTold) {
  const std::string script = "trap '' TERM INT; echo ready; while :; do sleep 0.01; done";
  EXPECT_EQ(launch_and_signal(2, script, "ready\n", {SIGTERM}), 128 + SIGTERM);
  EXPECT_GE(took_, 300ms);
  EXPECT_LT(took_, 5s);
}

TEST_F(Launch, EndsAtOnceWhenTheTerminalIsGone) {
  const std::string script = "trap 'echo told; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
  EXPECT_EQ(launch_and_signal(1, script, "ready\n", {SIGHUP}), 128 + SIGHUP);
  EXPECT_EQ(said(), "[0] ready\n[0] told\n");
}

TEST_F(Launch, KeepsTheCodeOfAFailureBeforeTheSignal) {
  options_.patience.after_failure = 30s;
  options_.error = options_.output;
  EXPECT_EQ(launch_and_signal(2, "[ $R = 0 ] && exit 3; exec sleep 100", "rank 0 exited", {SIGTERM}), 3);
  EXPECT_LT(took_, 10s);
}

TEST_F(Launch, EndsWithItsReader) {
  Pipe pipe = make_pipe();
  options_.output = pipe.write.get();
  pipe.read.reset();
  EXPECT_EQ(launch_script(2, "while :; do echo line; done"), 128 + SIGPIPE);
  EXPECT_THAT(complained(), HasSubstr("standard output"));
}

TEST_F(Launch, LosesNothingToASlowReader) {
  Pipe pipe = make_pipe();
  options_.output = pipe.write.get();
  std::string text;
  std::thread reader([&] {
    std::this_thread::sleep_for(800ms);  // far longer than what is waited for after the end
    std::string part(1 << 16, '\0');
    for (ssize_t size; (size = ::read(pipe.read.get(), part.data(), part.size())) > 0;) {
      text.append(part, 0, static_cast<size_t>(size));
    }
  });
  EXPECT_EQ(launch_script(1, "yes 0123456789 | head -n 300000"), 0);
  pipe.write.reset();
  reader.join();
  EXPECT_EQ(text.size(), 300000 * (4 + 11));
}

}  // namespace
}  // namespace trunkline
