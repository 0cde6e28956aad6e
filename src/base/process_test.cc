#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using Stream = ProcessOptions::Stream;
using testing::HasSubstr;

ProcessOptions shell(const std::string& script) {
  ProcessOptions options;
  options.argv = {"sh", "-c", script};
  options.input = Stream::null;
  options.output = Stream::pipe;
  return options;
}

std::string read_all(const Fd& fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t size; (size = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(size));
  return text;
}

std::string output_of(const ProcessOptions& options) {
  Process process = Process::start(options);
  std::string text = read_all(process.output);
  EXPECT_TRUE(process.wait(Deadline::after(10s)));
  return text;
}

bool exists(pid_t pid) { return ::kill(pid, 0) == 0; }

// True once every process that holds the other end is gone.
bool closes(const Fd& fd) {
  char byte;
  pollfd wait{fd.get(), POLLIN, 0};
  return ::poll(&wait, 1, 10'000) == 1 && ::read(fd.get(), &byte, 1) == 0;
}

TEST(Process, AShellTakesAWordAsItWas) {
  EXPECT_EQ(shell_word("/a b/$c"), "'/a b/$c'");
  for (const std::string text :
       {"it's", "a\tb 'c' \\ \"d\" $e `f`", "two\nlines \\n\x7f", "", "-x \\'", "\xc3\xa9\t"}) {
    const std::string word = shell_word(text);
    EXPECT_EQ(std::ranges::count_if(word, [](unsigned char c) { return c < 0x20; }), 0) << word;
    ProcessOptions options;
    options.argv = {"bash", "-c", "printf %s " + word};
    options.output = ProcessOptions::Stream::pipe;
    Process process = Process::start(options);
    std::string said;
    char buffer[256];
    for (ssize_t size; (size = ::read(process.output.get(), buffer, sizeof buffer)) > 0;) {
      said.append(buffer, static_cast<size_t>(size));
    }
    EXPECT_EQ(said, text);
    EXPECT_TRUE(process.wait(Deadline::after(std::chrono::seconds(10))));
  }
}

TEST(Process, PassesArgumentsUntouched) {
  ProcessOptions options = shell("for a in \"$@\"; do printf '<%s>' \"$a\"; done");
  options.argv.insert(options.argv.end(), {"sh", "a b", "", "*", "$HOME"});
  EXPECT_EQ(output_of(options), "<a b><><*><$HOME>");
}

TEST(Process, TalksOverItsPipesLineByLine) {
  ProcessOptions options = shell("while read -r line; do echo \"heard $line\"; done; echo bye >&2; exit 4");
  options.input = Stream::pipe;
  options.error = Stream::pipe;
  Process process = Process::start(options);
  char buffer[64];
  for (const std::string word : {"one", "two"}) {
    ASSERT_EQ(::write(process.input.get(), (word + "\n").data(), word.size() + 1), ssize_t(word.size() + 1));
    const ssize_t size = ::read(process.output.get(), buffer, sizeof buffer);
    EXPECT_EQ(std::string(buffer, size_t(size)), "heard " + word + "\n");
  }
  EXPECT_FALSE(process.exit_status());
  process.input.reset();
  EXPECT_EQ(read_all(process.error), "bye\n");
  const auto status = process.wait(Deadline::after(10s));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 4);
  EXPECT_EQ(status->text(), "exited with code 4");
}

TEST(Process, ChangesTheEnvironment) {
  ::setenv("TRUNKLINE_TEST_KEPT", "kept", 1);
  ::setenv("TRUNKLINE_TEST_TAKEN", "taken", 1);
  ProcessOptions options = shell("echo $TRUNKLINE_TEST_KEPT,${TRUNKLINE_TEST_TAKEN-none},$TRUNKLINE_TEST_NEW");
  options.environment = {{"TRUNKLINE_TEST_TAKEN", std::nullopt}, {"TRUNKLINE_TEST_NEW", "a=b c"}};
  EXPECT_EQ(output_of(options), "kept,none,a=b c\n");
}

TEST(Process, StartsInADirectory) {
  ProcessOptions options = shell("pwd -P");
  options.directory = "/usr";
  EXPECT_EQ(output_of(options), "/usr\n");
  options.directory = "/no/such/place";
  EXPECT_THAT([&] { Process::start(options); }, testing::ThrowsMessage<Error>(HasSubstr("/no/such/place")));
}

TEST(Process, SaysThatAProgramIsMissing) {
  for (const std::string name : {"no-such-program-here", "./no-such-program-here", "/etc/passwd", ""}) {
    ProcessOptions options;
    options.argv = {name};
    try {
      Process::start(options);
      FAIL() << name << " started";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_THAT(error.what(), HasSubstr(name));
    }
  }
}

TEST(Process, GivesNoDescriptorButThoseNamed) {
  Pipe kept = make_pipe();
  Pipe other = make_pipe();
  ProcessOptions options = shell("echo data >&" + std::to_string(kept.write.get()) + "; { echo x >&" +
                                 std::to_string(other.write.get()) + "; } 2>/dev/null || echo closed");
  options.inherit = {kept.write.get()};
  EXPECT_EQ(output_of(options), "closed\n");
  kept.write.reset();
  EXPECT_EQ(read_all(kept.read), "data\n");
}

TEST(Process, IsToldApartByTheSignalThatEndedIt) {
  Process process = Process::start(shell("exec sleep 100"));
  EXPECT_FALSE(process.wait(Deadline::after(20ms)));
  process.signal(SIGTERM);
  const auto status = process.wait(Deadline::after(10s));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 128 + SIGTERM);
  EXPECT_EQ(status->signal, SIGTERM);
  EXPECT_THAT(status->text(), HasSubstr("signal 15"));
}

TEST(Process, StartsWithDefaultSignalActions) {
  ::signal(SIGINT, SIG_IGN);
  sigset_t terminate;
  sigemptyset(&terminate);
  sigaddset(&terminate, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &terminate, nullptr);
  for (const int number : {SIGINT, SIGTERM}) {
    Process process = Process::start(shell("exec sleep 100"));
    process.signal(number);
    const auto status = process.wait(Deadline::after(10s));
    ASSERT_TRUE(status);
    EXPECT_EQ(status->signal, number);
  }
  ::signal(SIGINT, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &terminate, nullptr);
}

TEST(Process, MayIgnoreTheInterrupt) {
  ProcessOptions options = shell("kill -INT $$; echo lives");
  options.ignore_interrupt = true;
  EXPECT_EQ(output_of(options), "lives\n");
}

TEST(Process, LeavesNobodyBehind) {
  Pipe held = make_pipe();
  pid_t child = 0;
  {
    ProcessOptions options = shell("trap '' TERM INT HUP; sleep 100 & echo started; wait");
    options.own_group = true;
    options.inherit = {held.write.get()};
    Process process = Process::start(options);
    held.write.reset();
    child = process.pid();
    char buffer[32];
    ASSERT_GT(::read(process.output.get(), buffer, sizeof buffer), 0);
  }
  EXPECT_FALSE(exists(child));  // reaped
  EXPECT_TRUE(closes(held.read));
}

TEST(Process, TellsOfOthersInItsGroup) {
  ProcessOptions options = shell("sleep 100 & exit 0");
  options.own_group = true;
  Process process = Process::start(options);
  EXPECT_FALSE(Process::start(shell("exit 0")).leaves_others());
  ASSERT_TRUE(process.wait(Deadline::after(10s)));
  EXPECT_TRUE(process.leaves_others());
  process.signal(SIGKILL);
  EXPECT_EQ(read_all(process.output), "");  // the sleeper held it open
}

TEST(Process, AnnouncesItself) {
  Pipe pipe = make_pipe();
  ProcessOptions options = shell("exit 0");
  options.announce = pipe.write.get();
  Process process = Process::start(options);
  pid_t pid = 0;
  ASSERT_EQ(::read(pipe.read.get(), &pid, sizeof pid), ssize_t(sizeof pid));
  EXPECT_EQ(pid, process.pid());
}

TEST(Process, MovesWithItsOwner) {
  Process first = Process::start(shell("echo moved; exec sleep 100"));
  const pid_t pid = first.pid();
  Process second = std::move(first);
  char buffer[16];
  EXPECT_EQ(::read(second.output.get(), buffer, sizeof buffer), 6);
  second = Process::start(shell("exit 7"));
  EXPECT_FALSE(exists(pid));
  EXPECT_EQ(second.wait(Deadline::after(10s))->code, 7);
}

}  // namespace
}  // namespace trunkline
