#include "base/process.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/fail.h"
#include "base/settings.h"

extern char** environ;

namespace trunkline {

std::string shell_word(std::string_view text) {
  // $'...' where a control character would break the line, or be lost on it.
  const bool escapes = std::ranges::any_of(text, [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  std::string word = escapes ? "$'" : "'";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (escapes && (byte < 0x20 || byte == 0x7f)) {
      word += fmt::format("\\{:03o}", byte);
    } else if (c == '\'') {
      word += escapes ? "\\'" : "'\\''";
    } else if (escapes && c == '\\') {
      word += "\\\\";
    } else {
      word += c;
    }
  }
  return word + '\'';
}
namespace {

using Stream = ProcessOptions::Stream;

bool is_program(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && ::access(path.c_str(), X_OK) == 0;
}

// "NAME=VALUE" for every variable that the child gets.
std::vector<std::string> environment_of(const ProcessOptions& options) {
  std::map<std::string, std::optional<std::string>> changes(options.environment.begin(), options.environment.end());
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!changes.contains(std::string(text.substr(0, text.find('='))))) result.emplace_back(text);
  }
  for (const auto& [name, value] : changes) {
    if (value) result.push_back(name + "=" + *value);
  }
  return result;
}

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& string : strings) result.push_back(string.data());
  result.push_back(nullptr);
  return result;
}

// Why a child could not become its program; the child sends it up a pipe that closes on exec.
struct Failure {
  enum class Step : int { group, announce, directory, stream, inherit, exec };
  Step step;
  int code;
};

const char* name_of(Failure::Step step) {
  switch (step) {
    case Failure::Step::group: return "setpgid";
    case Failure::Step::announce: return "write of its process id";
    case Failure::Step::directory: return "chdir";
    case Failure::Step::stream: return "redirection of its standard streams";
    case Failure::Step::inherit: return "inheritance of a descriptor";
    case Failure::Step::exec: return "exec";
  }
  return "start";
}

// All that the child needs between fork and exec, where it may call async-signal-safe functions only.
struct Child {
  const ProcessOptions& options;
  const char* program;
  char* const* argv;
  char* const* environment;
  std::array<int, 3> streams;  // what becomes descriptors 0, 1 and 2; -1: stays
  int failures;

  [[noreturn]] void become_program() const {
    if (options.own_group && ::setpgid(0, 0) != 0) report(Failure::Step::group);
    if (options.announce >= 0) {
      const pid_t self = ::getpid();
      if (::write(options.announce, &self, sizeof self) != sizeof self) report(Failure::Step::announce);
    }
    if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) report(Failure::Step::directory);
    for (int target = 0; target < 3; ++target) {
      const int source = streams[target];
      if (source < 0) continue;
      if (::dup2(source, target) < 0) report(Failure::Step::stream);
    }
    for (const int fd : options.inherit) {
      if (::fcntl(fd, F_SETFD, 0) != 0) report(Failure::Step::inherit);
    }
    reset_signals();
    ::execve(program, argv, environment);
    report(Failure::Step::exec);
  }

  void reset_signals() const {
    for (const int number : {SIGINT, SIGQUIT, SIGTERM, SIGPIPE, SIGCHLD}) ::signal(number, SIG_DFL);
    if (options.ignore_interrupt) ::signal(SIGINT, SIG_IGN);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
  }

  [[noreturn]] void report(Failure::Step step) const {
    const Failure failure{step, errno};
    [[maybe_unused]] const ssize_t written = ::write(failures, &failure, sizeof failure);
    ::_exit(127);
  }
};

// A pipe between the child's descriptor and us, or /dev/null, or nothing; sets `ours` and `theirs`.
void open_stream(Stream stream, bool child_reads, Fd& ours, Fd& theirs) {
  if (stream == Stream::inherit) return;
  if (stream == Stream::null) {
    theirs = Fd(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!theirs) fail_errno("open /dev/null");
    return;
  }
  Pipe pipe = make_pipe();
  ours = std::move(child_reads ? pipe.write : pipe.read);
  theirs = std::move(child_reads ? pipe.read : pipe.write);
}

std::optional<Failure> read_failure(int fd) {
  Failure failure{};
  ssize_t size;
  do {
    size = ::read(fd, &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  if (size != sizeof failure) return std::nullopt;
  return failure;
}

}  // namespace

std::string ExitStatus::text() const {
  if (signal == 0) return fmt::format("exited with code {}", code);
  return fmt::format("was killed by signal {} ({})", signal, ::strsignal(signal));
}

std::optional<std::filesystem::path> find_program(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name.find('/') != std::string::npos) {
    if (is_program(name)) return name;
    return std::nullopt;
  }
  const std::string path = Settings::get().path.value_or("/usr/bin:/bin");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const std::string directory = path.substr(begin, end - begin);
    auto candidate = std::filesystem::path(directory.empty() ? "." : directory) / name;
    if (is_program(candidate)) return candidate;
    begin = end + 1;
  }
  return std::nullopt;
}

Process Process::start(const ProcessOptions& options) {
  if (options.argv.empty()) fail(ErrorKind::input, "a program to start needs a name");
  const auto program = find_program(options.argv[0]);
  if (!program) {
    fail(ErrorKind::input, "{}: no such program{}", options.argv[0],
         options.argv[0].find('/') == std::string::npos ? " in PATH" : ", or not executable");
  }
  const std::string name = std::filesystem::absolute(*program);  // `directory` must not change what it means
  std::vector<std::string> arguments = options.argv;
  std::vector<std::string> variables = environment_of(options);
  const std::vector<char*> argv = pointers_to(arguments);
  const std::vector<char*> environment = pointers_to(variables);

  Process process(-1, options.own_group);
  Pipe failures;
  {
    // One at a time: otherwise a child could inherit another's pipes, whose end of file would then never come.
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    std::array<Fd, 3> theirs;
    open_stream(options.input, true, process.input, theirs[0]);
    open_stream(options.output, false, process.output, theirs[1]);
    open_stream(options.error, false, process.error, theirs[2]);
    failures = make_pipe();
    const Child child{options,
                      name.c_str(),
                      argv.data(),
                      environment.data(),
                      {theirs[0].get(), theirs[1].get(), theirs[2].get()},
                      failures.write.get()};

    // Signals wait until the child has its own actions: a handler of ours must not run in it.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    const pid_t pid = ::fork();
    if (pid == 0) child.become_program();
    const int code = errno;
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    errno = code;
    if (pid < 0) fail_errno("{}: fork", options.argv[0]);
    process.pid_ = pid;
  }
  failures.write.reset();
  if (const auto failure = read_failure(failures.read.get())) {
    errno = failure->code;
    fail_errno("{}: {}{}", options.argv[0], name_of(failure->step),
               failure->step == Failure::Step::directory ? " to " + options.directory.string() : "");
  }
  return process;
}

Process::~Process() { end(); }

Process::Process(Process&& other) noexcept
    : input(std::move(other.input)),
      output(std::move(other.output)),
      error(std::move(other.error)),
      pid_(std::exchange(other.pid_, -1)),
      own_group_(other.own_group_),
      reaped_(other.reaped_),
      status_(other.status_) {}

Process& Process::operator=(Process&& other) noexcept {
  if (this != &other) {
    end();
    input = std::move(other.input);
    output = std::move(other.output);
    error = std::move(other.error);
    pid_ = std::exchange(other.pid_, -1);
    own_group_ = other.own_group_;
    reaped_ = other.reaped_;
    status_ = other.status_;
  }
  return *this;
}

// The process is only looked at here and reaped later: until then its id, and its group's, can be no one else's.
std::optional<ExitStatus> Process::exit_status() {
  if (status_ || pid_ < 0) return status_;
  siginfo_t info{};
  int result;
  do {
    result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_errno("waitid for process {}", pid_);
  if (info.si_pid == 0) return std::nullopt;
  status_ =
      info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{128 + info.si_status, info.si_status};
  return status_;
}

std::optional<ExitStatus> Process::wait(Deadline deadline) {
  auto pause = std::chrono::microseconds(200);
  while (!exit_status() && !deadline.expired()) {
    std::this_thread::sleep_for(std::min<Clock::duration>(pause, deadline.left()));
    pause = std::min(pause * 2, std::chrono::microseconds(20'000));
  }
  return exit_status();
}

void Process::signal(int number) {
  if (pid_ < 0 || (reaped_ && !own_group_)) return;
  ::kill(own_group_ ? -pid_ : pid_, number);
}

bool Process::leaves_others() {
  if (!own_group_ || !exit_status()) return false;
  reap();
  // Orphans of the group come to us where we are their reaper; dead ones would count as living.
  while (::waitpid(-pid_, nullptr, WNOHANG) > 0) {
  }
  return ::kill(-pid_, 0) == 0;
}

void Process::reap() noexcept {
  if (reaped_) return;
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  reaped_ = true;
}

void Process::end() noexcept {
  if (pid_ < 0) return;
  input.reset();
  output.reset();
  error.reset();
  signal(SIGKILL);
  reap();
  pid_ = -1;
}

}  // namespace trunkline
