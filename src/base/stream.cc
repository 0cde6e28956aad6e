#include "base/stream.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <csignal>

#include "base/fail.h"

namespace trunkline {
namespace {

// Keeps SIGPIPE from this thread; one that came meanwhile is taken away again.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &only_sigpipe(), &before_);
  }
  ~NoSigpipe() {
    sigset_t pending;
    sigpending(&pending);
    if (!was_pending_ && sigismember(&pending, SIGPIPE) == 1) {
      int number = 0;
      sigwait(&only_sigpipe(), &number);
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  static const sigset_t& only_sigpipe() {
    static const sigset_t set = [] {
      sigset_t result;
      sigemptyset(&result);
      sigaddset(&result, SIGPIPE);
      return result;
    }();
    return set;
  }
  sigset_t before_{};
  bool was_pending_ = false;
};

// Whether `fd` became ready (or broke) before the deadline.
bool await(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.left_ms());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail_errno("poll");
    if (deadline.expired()) return false;
  }
}

}  // namespace

StreamEnd write_exactly(int fd, std::span<const std::byte> bytes, Deadline deadline) {
  const NoSigpipe guard;
  while (!bytes.empty()) {
    if (!await(fd, POLLOUT, deadline)) return StreamEnd::late;
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EPIPE) return StreamEnd::closed;
    if (put < 0 && errno != EINTR && errno != EAGAIN) fail_errno("write to a pipe");
    if (put > 0) bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return StreamEnd::done;
}

StreamEnd read_exactly(int fd, std::span<std::byte> bytes, Deadline deadline) {
  while (!bytes.empty()) {
    if (!await(fd, POLLIN, deadline)) return StreamEnd::late;
    const ssize_t got = ::read(fd, bytes.data(), bytes.size());
    if (got == 0) return StreamEnd::closed;
    if (got < 0 && errno != EINTR && errno != EAGAIN) fail_errno("read from a pipe");
    if (got > 0) bytes = bytes.subspan(static_cast<size_t>(got));
  }
  return StreamEnd::done;
}

}  // namespace trunkline
