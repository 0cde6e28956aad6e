#include "launch/signals.h"

#include <unistd.h>

#include <cerrno>

namespace trunkline {
namespace {

volatile std::sig_atomic_t noted_fd = -1;

extern "C" void note_signal(int number) {
  const int code = errno;
  const auto byte = static_cast<unsigned char>(number);
  [[maybe_unused]] const ssize_t written = ::write(noted_fd, &byte, 1);  // full: a reader has enough to wake for
  errno = code;
}

}  // namespace

Signals::Signals() : pipe_(make_pipe()) {
  set_non_blocking(pipe_.read.get());
  set_non_blocking(pipe_.write.get());
  noted_fd = pipe_.write.get();
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD, SIGPIPE}) {
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = number == SIGPIPE ? SIG_IGN : note_signal;
    if (number == SIGCHLD) action.sa_flags = SA_NOCLDSTOP;
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;
    ::sigaction(number, &action, nullptr);
    before_[number] = before;
  }
}

Signals::~Signals() {
  for (const auto& [number, action] : before_) ::sigaction(number, &action, nullptr);
  noted_fd = -1;
}

std::optional<int> Signals::next() {
  unsigned char byte;
  if (::read(pipe_.read.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace trunkline
