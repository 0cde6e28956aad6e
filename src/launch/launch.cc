#include "launch/launch.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/cores.h"
#include "base/fail.h"
#include "base/process.h"
#include "base/settings.h"
#include "launch/environment.h"
#include "launch/fabric.h"
#include "launch/guard.h"
#include "launch/lines.h"
#include "launch/signals.h"

namespace trunkline {
namespace {

// A signal that nobody else's end brings about: not what a broken connection does to a program (SIGPIPE, SIGABRT).
bool is_crash(const ExitStatus& status) {
  const int kinds[] = {SIGKILL, SIGSEGV, SIGBUS, SIGILL, SIGFPE};
  return std::ranges::count(kinds, status.signal) > 0;
}

using Stream = ProcessOptions::Stream;

constexpr int kNotFound = 127;                      // as shells have it
constexpr size_t kBacklog_bytes = size_t{1} << 20;  // of lines that wait to be written; ranks wait beyond that
constexpr auto kLongestWait = std::chrono::seconds(1);
constexpr auto kStep = std::chrono::milliseconds(10);  // between looks at what tells nobody of its end

// One rank: its process, and what it says.
struct Rank {
  Rank(Process started, Fd log_file) : process(std::move(started)), log(std::move(log_file)) {}

  Process process;
  Fd log;
  LineSplitter output_lines, error_lines;
  std::optional<ExitStatus> status;  // once it has ended
};

// A job goes through these in order and may skip some; Job::next_ says when the next one begins.
enum class Phase {
  running,
  failing,      // one has failed: the others may say what they saw and end
  leaving,      // all have ended: what they left in their groups may end
  terminating,  // SIGTERM is sent
  killing,      // SIGKILL is sent
};

class Job {
 public:
  explicit Job(const LaunchOptions& options)
      : options_(options), guard_(options.ranks, options.patience.after_terminate) {
    start();
  }

  int run() {
    while (!finished()) {
      wait();
      handle_signals();
      handle_exits();
      handle_time();
    }
    flush();
    return exit_code();
  }

 private:
  void start() {
    const Rendezvous rendezvous = open_rendezvous(options_.ranks);
    const int threads = std::max(1, usable_cores() / options_.ranks);
    const auto terminal = terminal_size(options_.output, options_.error);
    std::optional<Fabric> fabric;
    if (options_.wiring) fabric = open_fabric(*options_.wiring);
    ranks_.reserve(static_cast<size_t>(options_.ranks));
    for (int rank = 0; rank < options_.ranks; ++rank) {
      Fd log = open_log(rank);
      ProcessOptions process;
      process.argv = options_.program;
      process.environment = rank_environment(rank, options_.ranks, rendezvous, threads, terminal, Settings::get());
      for (auto& variable : fabric_environment(fabric ? &*fabric : nullptr, Settings::get())) {
        process.environment.push_back(std::move(variable));
      }
      // A rank's group is not the terminal's foreground group: reading from the terminal would stop it.
      process.input = rank == 0 && !::isatty(STDIN_FILENO) ? Stream::inherit : Stream::null;
      process.output = Stream::pipe;
      process.error = Stream::pipe;
      if (rank == 0) process.inherit.push_back(rendezvous.socket.get());
      if (fabric) process.inherit.insert(process.inherit.end(), {fabric->state.get(), fabric->matrix.get()});
      process.own_group = true;
      process.announce = guard_.announce();
      ranks_.emplace_back(Process::start(process), std::move(log));
      set_non_blocking(ranks_.back().process.output.get());
      set_non_blocking(ranks_.back().process.error.get());
    }
  }

  Fd open_log(int rank) const {
    if (options_.log_directory.empty()) return {};
    const auto path = options_.log_directory / fmt::format("rank-{}.log", rank);
    Fd log(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!log) fail_errno("--log-dir: {}", path.string());
    return log;
  }

  // Until something happens, carrying output meanwhile.
  void wait() {
    std::vector<pollfd> polled = {{signals_.fd(), POLLIN, 0}};
    if (!writer_.empty()) polled.push_back({writer_.fd(), POLLOUT, 0});
    const size_t first_rank = polled.size();
    const bool take = writer_.size() < kBacklog_bytes;
    for (const Rank& rank : ranks_) {
      // A negative descriptor is passed over.
      polled.push_back({take ? rank.process.output.get() : -1, POLLIN, 0});
      polled.push_back({take ? rank.process.error.get() : -1, POLLIN, 0});
    }
    if (::poll(polled.data(), static_cast<nfds_t>(polled.size()), wait_ms()) < 0) {
      if (errno != EINTR) fail_errno("poll");
      return;
    }
    if (first_rank == 2 && polled[1].revents != 0) write_output();
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (polled[first_rank + 2 * i].revents != 0) read_output(static_cast<int>(i));
      if (polled[first_rank + 2 * i + 1].revents != 0) read_error(static_cast<int>(i));
    }
  }

  int wait_ms() const {
    Clock::duration wait = all_ended() ? Clock::duration(kStep) : Clock::duration(kLongestWait);
    if (next_) wait = std::min(wait, next_->left());
    return Deadline::after(wait).left_ms();
  }

  // --- output

  bool read_output(int rank) {
    Rank& from = ranks_[static_cast<size_t>(rank)];
    return read_lines(rank, from.process.output, from.output_lines, options_.output);
  }
  bool read_error(int rank) {
    Rank& from = ranks_[static_cast<size_t>(rank)];
    return read_lines(rank, from.process.error, from.error_lines, options_.error);
  }

  // Once; false when there was nothing to read, or no more ever.
  bool read_lines(int rank, Fd& pipe, LineSplitter& lines, int to) {
    if (!pipe) return false;
    const auto sink = [&](std::string_view line) {
      writer_.add(to, fmt::format("[{}] {}\n", rank, line));
      log_line(rank, line);
    };
    std::array<char, 16384> buffer;
    const ssize_t size = ::read(pipe.get(), buffer.data(), buffer.size());
    if (size > 0) {
      lines.add({buffer.data(), static_cast<size_t>(size)}, sink);
      return true;
    }
    if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    lines.finish(sink);
    pipe.reset();
    return false;
  }

  void log_line(int rank, std::string_view line) {
    Fd& log = ranks_[static_cast<size_t>(rank)].log;
    if (!log) return;
    const std::string text = fmt::format("{}\n", line);
    for (size_t done = 0; done < text.size();) {
      const ssize_t size = ::write(log.get(), text.data() + done, text.size() - done);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) {
        say("the log of rank {} ends here: {}", rank, std::strerror(errno));
        log.reset();
        return;
      }
      done += static_cast<size_t>(size);
    }
  }

  // What a rank said before it ended goes before the news of its end. Bounded: others may hold its pipes and write on.
  void read_rest(int rank) {
    for (int i = 0; i < 16 && read_output(rank); ++i) {
    }
    for (int i = 0; i < 16 && read_error(rank); ++i) {
    }
  }

  void write_output() {
    const int to = writer_.fd();
    if (writer_.write_some()) return;
    say("{}: {}; the job ends", to == options_.error ? "standard error" : "standard output", std::strerror(errno));
    end_now(SIGPIPE);  // as it would end any program that writes where nobody reads
  }

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) {
    writer_.add(options_.error,
                fmt::format("trunkline launch: {}\n", fmt::format(format, std::forward<Args>(args)...)));
  }

  // --- events

  void handle_signals() {
    while (const auto number = signals_.next()) {
      if (*number == SIGCHLD) continue;
      const bool first = *number == SIGINT && !interrupted_ && phase_ <= Phase::failing;
      if (!first) {
        end_now(*number);
        continue;
      }
      interrupted_ = true;
      send(SIGINT);
      say("Ctrl-C is passed on to the ranks, which may take their time to end; a second one ends them at once");
    }
  }

  void handle_exits() {
    std::vector<int> ended;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (ranks_[i].status) continue;
      ranks_[i].status = ranks_[i].process.exit_status();
      if (ranks_[i].status) ended.push_back(static_cast<int>(i));
    }
    for (const int rank : ended) {
      read_rest(rank);
      handle_exit(rank, *ranks_[static_cast<size_t>(rank)].status);
    }
  }

  void handle_exit(int rank, const ExitStatus& status) {
    if (status.code == 0) return;
    if (phase_ >= Phase::terminating) return;           // our doing
    if (interrupted_ && status.code == 128 + SIGINT) {  // what Ctrl-C asks for is no failure
      interrupt_taken_ = true;
      return;
    }
    const bool first = !first_failure_;
    const bool cause =
        !first && first_failure_->signal == 0 && is_crash(status) && !interrupted_ && !same_moment_->expired();
    if (first || cause) first_failure_ = status;
    if (first) same_moment_ = Deadline::after(options_.patience.same_moment);
    if (first && !all_ended()) {
      enter(Phase::failing, options_.patience.after_failure);
      say("rank {} {}; the others have {} to end by themselves", rank, status.text(),
          seconds(options_.patience.after_failure));
    } else {
      say("rank {} {}{}", rank, status.text(), cause ? ", which counts as the first failure" : "");
    }
  }

  void handle_time() {
    if (all_ended() && phase_ < Phase::leaving) enter(Phase::leaving, options_.patience.after_end);
    if (!next_ || !next_->expired()) return;
    switch (phase_) {
      case Phase::running: break;
      case Phase::failing:
        say("{} did not end within {}", unended(), seconds(options_.patience.after_failure));
        terminate();
        break;
      case Phase::leaving:
        if (writer_.size() >= kBacklog_bytes) {  // what they said waits for our own reader
          enter(Phase::leaving, options_.patience.after_end);
        } else if (some_left()) {
          say("ranks have left processes behind, which are ended now");
          terminate();
        } else {
          close_pipes();
        }
        break;
      case Phase::terminating:
        send(SIGKILL);
        enter(Phase::killing, options_.patience.after_end);
        break;
      case Phase::killing:
        if (all_ended()) {
          close_pipes();
          given_up_ = true;
        } else {
          send(SIGKILL);
          enter(Phase::killing, options_.patience.after_end);
        }
        break;
    }
  }

  void end_now(int number) {
    if (!ended_by_) ended_by_ = number;
    if (phase_ < Phase::terminating) terminate();
  }

  void terminate() {
    send(SIGTERM);
    enter(Phase::terminating, options_.patience.after_terminate);
  }

  void enter(Phase phase, std::chrono::milliseconds length) {
    phase_ = phase;
    next_ = Deadline::after(length);
  }

  // --- state

  // A rank that has ended may have left others in its group, so all groups get it.
  void send(int number) {
    for (Rank& rank : ranks_) rank.process.signal(number);
  }

  bool all_ended() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return rank.status.has_value(); });
  }

  bool some_left() {
    return std::any_of(ranks_.begin(), ranks_.end(), [](Rank& rank) { return rank.process.leaves_others(); });
  }

  // A process outside the ranks' groups may hold their pipes for as long as it likes: we go without it.
  void close_pipes() {
    for (Rank& rank : ranks_) {
      rank.process.output.reset();
      rank.process.error.reset();
    }
  }

  bool finished() {
    if (!all_ended()) return false;
    if (given_up_) return true;
    const bool silent = std::all_of(ranks_.begin(), ranks_.end(),
                                    [](const Rank& rank) { return !rank.process.output && !rank.process.error; });
    return silent && !some_left();
  }

  // What is still to be written waits for its reader, unless someone wants the job to end.
  void flush() {
    auto deadline = std::optional<Deadline>();
    if (ended_by_) deadline = Deadline::after(options_.patience.after_end);
    while (!writer_.empty() && !(deadline && deadline->expired())) {
      std::array<pollfd, 2> polled = {{{writer_.fd(), POLLOUT, 0}, {signals_.fd(), POLLIN, 0}}};
      ::poll(polled.data(), polled.size(), deadline ? deadline->left_ms() : 1000);
      if (polled[0].revents != 0) write_output();
      handle_signals();
      if (ended_by_ && !deadline) deadline = Deadline::after(options_.patience.after_end);
    }
  }

  int exit_code() const {
    if (first_failure_) return first_failure_->code;
    if (ended_by_) return 128 + *ended_by_;
    if (interrupt_taken_) return 128 + SIGINT;
    return 0;
  }

  std::string unended() const {
    std::string names;
    for (size_t i = 0; i < ranks_.size(); ++i) {
      if (!ranks_[i].status) names += fmt::format("{}rank {}", names.empty() ? "" : ", ", i);
    }
    return names;
  }

  static std::string seconds(std::chrono::milliseconds duration) {
    return fmt::format("{:g} s", std::chrono::duration<double>(duration).count());
  }

  const LaunchOptions& options_;
  Signals signals_;
  Guard guard_;
  std::vector<Rank> ranks_;
  LineWriter writer_;

  Phase phase_ = Phase::running;
  std::optional<Deadline> next_;
  std::optional<ExitStatus> first_failure_;  // of the first rank that failed
  std::optional<Deadline> same_moment_;      // until then a crash is its cause
  std::optional<int> ended_by_;              // the signal that ended the job
  bool interrupted_ = false;                 // the first Ctrl-C has come
  bool interrupt_taken_ = false;             // and a rank was ended by it
  bool given_up_ = false;                    // on processes that even SIGKILL does not end
};

}  // namespace

int launch(const LaunchOptions& options) {
  if (options.ranks < 1) fail(ErrorKind::input, "launch: -n {}: a job has at least 1 rank", options.ranks);
  if (options.program.empty()) fail(ErrorKind::input, "launch: no program: trunkline launch -n N -- PROGRAM ARGS...");
  if (!find_program(options.program[0])) {
    fmt::print(stderr, "trunkline launch: {}: no such program{}\n", options.program[0],
               options.program[0].find('/') == std::string::npos ? " in PATH" : ", or not executable");
    return kNotFound;
  }
  if (!options.log_directory.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.log_directory, error);
    if (error) fail(ErrorKind::input, "--log-dir: {}: {}", options.log_directory.string(), error.message());
  }
#ifdef __linux__
  // Orphans of a rank come to us, and not to an init that may be slow to reap them or none.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
#endif
  return Job(options).run();
}

}  // namespace trunkline
