#include "launch/guard.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifdef __APPLE__
#include <crt_externs.h>
#endif

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>
#include <span>
#include <string>
#include <vector>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

constexpr pid_t kDismissed = 0;
constexpr long kStep_ms = 20;

// The bytes of this process's command line, which `ps` and `pkill -f` show; empty where they cannot be found.
std::span<char> command_line() {
#ifdef __APPLE__
  char** const arguments = *_NSGetArgv();
  char* const last = arguments[*_NSGetArgc() - 1];
  return {arguments[0], last + std::strlen(last)};
#elif defined(__linux__)
  // proc(5): fields 48 and 49 of stat, counted from the closing parenthesis of field 2, are arg_start and arg_end.
  const std::string stat = read_file("/proc/self/stat");
  size_t at = stat.rfind(')');
  for (int field = 2; field < 48 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
  if (at == std::string::npos) return {};
  char* end = nullptr;
  const unsigned long first = std::strtoul(stat.c_str() + at, &end, 10);
  const unsigned long last = std::strtoul(end, nullptr, 10);
  if (first == 0 || last <= first) return {};
  // The kernel gives an address as a number.
  return {reinterpret_cast<char*>(first), last - first};  // NOLINT(performance-no-int-to-ptr)
#else
  return {};
#endif
}

// The guard's side. Between fork and _exit it calls async-signal-safe functions only.
class Watch {
 public:
  Watch(int pipe, std::vector<pid_t>& groups, std::chrono::milliseconds grace, std::span<char> title)
      : pipe_(pipe), groups_(groups), grace_(grace), title_(title) {}

  [[noreturn]] void run() {
    ::setsid();
    for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGPIPE}) ::signal(number, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    leave_streams();
    take_name();
    if (listen()) end_groups();
    ::_exit(0);
  }

 private:
  // Whoever reads the launcher's output must not wait for the guard.
  static void leave_streams() {
    const int null = ::open("/dev/null", O_RDWR);
    for (int fd = 0; fd < 3 && null >= 0; ++fd) ::dup2(null, fd);
    if (null > 2) ::close(null);
  }

  // A signal sent to the launcher by its name must not hit the guard as well.
  void take_name() {
    static constexpr char kName[] = "rank-guard";
#ifdef __linux__
    ::prctl(PR_SET_NAME, kName);
#endif
    if (title_.empty()) return;
    std::fill(title_.begin(), title_.end(), '\0');
    std::copy_n(kName, std::min(sizeof kName - 1, title_.size() - 1), title_.begin());
  }

  // Until the launcher dismisses the guard (false) or is gone (true).
  bool listen() {
    for (;;) {
      pid_t group;
      const ssize_t size = ::read(pipe_, &group, sizeof group);  // writes of so few bytes are not cut
      if (size < 0 && errno == EINTR) continue;
      if (size != sizeof group) return true;
      if (group == kDismissed) return false;
      if (groups_.size() < groups_.capacity()) groups_.push_back(group);
    }
  }

  void end_groups() {
    send(SIGTERM);
    for (int64_t waited = 0; waited < grace_.count() && some_live(); waited += kStep_ms) {
      const timespec step{0, kStep_ms * 1'000'000};
      ::nanosleep(&step, nullptr);
    }
    send(SIGKILL);
  }

  void send(int number) {
    for (const pid_t group : groups_) ::kill(-group, number);
  }

  bool some_live() {
    return std::any_of(groups_.begin(), groups_.end(), [](pid_t group) { return ::kill(-group, 0) == 0; });
  }

  int pipe_;
  std::vector<pid_t>& groups_;
  std::chrono::milliseconds grace_;
  std::span<char> title_;
};

}  // namespace

Guard::Guard(int groups, std::chrono::milliseconds grace) {
  Pipe pipe = make_pipe();
  std::vector<pid_t> known;
  known.reserve(static_cast<size_t>(groups));
  Watch watch(pipe.read.get(), known, grace, command_line());

  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(pipe.write.get());
    watch.run();
  }
  const int code = errno;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = code;
  if (pid_ < 0) fail_errno("fork of the guard over the ranks");
  pipe_ = std::move(pipe.write);
}

Guard::~Guard() {
  [[maybe_unused]] const ssize_t written = ::write(pipe_.get(), &kDismissed, sizeof kDismissed);
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace trunkline
