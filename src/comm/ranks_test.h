// Jobs for tests: ranks as threads of this process, or as processes of their own.
#pragma once

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

using Tweak = std::function<void(Config&)>;

// Runs `body` on every rank, each in a thread; returns what each rank threw ("" for nothing).
inline std::vector<std::string> run_threads(
    int size, const std::function<void(Group&)>& body, const Tweak& tweak = [](Config&) {}) {
  const Job job(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Config config = job.config(rank);
        tweak(config);
        body(*Group::connect(config));
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  return errors;
}

// A rank in a process of its own. `body` runs in the child; what it throws is its output.
class RankProcess {
 public:
  explicit RankProcess(const std::function<void()>& body) {
    Pipe pipe = make_pipe();
    pid_ = ::fork();
    if (pid_ == 0) {
      std::string text;
      int code = 0;
      try {
        body();
      } catch (const std::exception& error) {
        text = error.what();
        code = 1;
      }
      [[maybe_unused]] const ssize_t count = ::write(pipe.write.get(), text.data(), text.size());
      ::_exit(code);
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

  void signal(int number) const { ::kill(pid_, number); }

  // Waits for the end; the exit code (128 + a signal), and what was thrown.
  int wait(std::string* error = nullptr) {
    std::string text;
    char buffer[512];
    for (ssize_t count; (count = ::read(output_.get(), buffer, sizeof buffer)) > 0;) {
      text.append(buffer, static_cast<size_t>(count));
    }
    int status = 0;
    ::waitpid(std::exchange(pid_, -1), &status, 0);
    if (error != nullptr) *error = text;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_ = -1;
  Fd output_;
};

}  // namespace trunkline::testing
