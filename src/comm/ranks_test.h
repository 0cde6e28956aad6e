// Jobs for tests: ranks as threads of this process, or as processes of their own.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "link/socket.h"
#include "trunkline/group.h"

namespace trunkline::testing {

inline const std::string kKey = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

// A job on loopback whose port nobody else has: rank 0 inherits the listening socket.
class Job {
 public:
  explicit Job(int size) : size_(size), listener_(listen_on(Address::resolve("127.0.0.1:0").front())) {
    coordinator_ = Address::local_of(listener_.get()).text();
  }

  const std::string& coordinator() const { return coordinator_; }
  int size() const { return size_; }

  Config config(int rank) const {
    Config config;
    config.rank = rank;
    config.size = size_;
    config.coordinator = coordinator_;
    config.job_key = kKey;
    config.timeout = std::chrono::seconds(20);
    if (rank == 0) config.listen_fd = ::dup(listener_.get());
    return config;
  }

  // The port is refused from now on, unless rank 0 listens.
  void close_listener() { listener_.reset(); }

 private:
  int size_;
  Fd listener_;
  std::string coordinator_;
};

// For the names of test cases.
inline const char* text_of(Algorithm algorithm) {
  constexpr const char* kNames[] = {"Automatic", "Mesh", "Broadcast", "Ring"};
  return kNames[static_cast<size_t>(algorithm)];
}

using Tweak = std::function<void(Config&)>;

// What a rank threw.
struct Thrown {
  ErrorKind kind = ErrorKind::system;
  std::string text;  // empty: nothing
};
inline std::ostream& operator<<(std::ostream& out, const Thrown& thrown) { return out << "\"" << thrown.text << "\""; }

using Connect = std::function<std::shared_ptr<Group>(const Config&)>;

// Runs `body` on every rank, each in a thread.
inline std::vector<Thrown> run_threads(int size, const Connect& connect, const std::function<void(Group&)>& body,
                                       const Tweak& tweak) {
  const Job job(size);
  std::vector<Thrown> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Config config = job.config(rank);
        tweak(config);
        body(*connect(config));
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = {error.kind(), error.what()};
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return errors;
}

inline std::vector<Thrown> run_threads(
    int size, const std::function<void(Group&)>& body, const Tweak& tweak = [](Config&) {}) {
  return run_threads(size, Group::connect, body, tweak);
}

// A rank in a process of its own. `body` runs in the child and calls its argument once it is ready; what it throws is
// its output.
class RankProcess {
 public:
  using Ready = std::function<void()>;

  explicit RankProcess(const std::function<void(const Ready&)>& body) {
    Pipe pipe = make_pipe();
    pid_ = ::fork();
    if (pid_ == 0) {
      const auto say = [&](const std::string& text) {
        if (::write(pipe.write.get(), text.data(), text.size()) < 0) ::_exit(99);
      };
      try {
        body([&] { say("."); });
        ::_exit(0);
      } catch (const std::exception& error) {
        say(error.what());
        ::_exit(1);
      }
    }
    output_ = std::move(pipe.read);
  }
  ~RankProcess() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
  }
  RankProcess(RankProcess&& other) noexcept : pid_(std::exchange(other.pid_, -1)), output_(std::move(other.output_)) {}
  RankProcess& operator=(RankProcess&&) = delete;

  void await_ready() {
    char ready = 0;
    while (::read(output_.get(), &ready, 1) < 0 && errno == EINTR) {
    }
    if (ready != '.') fail(ErrorKind::peer, "a rank failed early: {}", rest());
  }

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }

  struct End {
    int code;           // 128 + a signal
    std::string error;  // what was thrown
  };
  End wait() {
    std::string error = rest();
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), error};
  }

 private:
  std::string rest() {
    std::string text;
    char buffer[512];
    for (ssize_t count; (count = ::read(output_.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    return text;
  }

  pid_t pid_ = -1;
  Fd output_;
};

// Every rank of a job in a process of its own.
inline std::vector<RankProcess> start_processes(
    const Job& job, const std::function<void(Group&, const RankProcess::Ready&)>& body,
    const Tweak& tweak = [](Config&) {}) {
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < job.size(); ++rank) {
    ranks.emplace_back([&, rank](const RankProcess::Ready& ready) {
      Config config = job.config(rank);
      tweak(config);
      body(*Group::connect(config), ready);
    });
  }
  return ranks;
}

}  // namespace trunkline::testing
