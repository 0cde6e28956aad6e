// A file descriptor with one owner.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <utility>

#include "base/fail.h"

namespace trunkline {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int number) : number_(number) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : number_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      number_ = other.release();
    }
    return *this;
  }

  // -1 when nothing is owned.
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  int release() { return std::exchange(number_, -1); }
  void reset() {
    if (number_ >= 0) ::close(std::exchange(number_, -1));
  }

 private:
  int number_ = -1;
};

inline void set_close_on_exec(int fd) {
  if (::fcntl(fd, F_SETFD, FD_CLOEXEC) != 0) fail_errno("fcntl(F_SETFD) on descriptor {}", fd);
}

inline void set_non_blocking(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) fail_errno("fcntl(O_NONBLOCK) on descriptor {}", fd);
}

// Descriptors 0, 1 and 2, where they were closed when this process began, become /dev/null: otherwise the next file
// that is opened would take their place, and messages would go into it.
inline void open_standard_streams() {
  for (int fd = 0; fd < 3; ++fd) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) fail_errno("open /dev/null");
  }
}

struct Pipe {
  Fd read, write;
};

// Both ends close on exec. (macOS has no pipe2: a program started by another thread at this very moment may inherit
// them; Process::start keeps out of its own way by a lock.)
inline Pipe make_pipe() {
  int ends[2];
#ifdef __linux__
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
#else
  if (::pipe(ends) != 0) fail_errno("pipe");
  Pipe result{Fd(ends[0]), Fd(ends[1])};
  set_close_on_exec(ends[0]);
  set_close_on_exec(ends[1]);
  return result;
#endif
}

}  // namespace trunkline
