// Child processes: started with pipes, waited for with a deadline, gone with their owner. Descriptors 0, 1 and 2 must
// be open (open_standard_streams).
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace trunkline {

// `text` as one word on one line of a shell's command.
std::string shell_word(std::string_view text);

// How a process ended.
struct ExitStatus {
  int code = 0;              // as a shell gives it: the program's own code, or 128 + the signal
  int signal = 0;            // the signal that ended it; 0: none did
  std::string text() const;  // "exited with code 3", "was killed by signal 9 (Killed)"
};

struct ProcessOptions {
  enum class Stream { inherit, null, pipe };

  std::vector<std::string> argv;  // argv[0] is looked for in PATH unless it has a slash
  // On top of this process's environment; a variable without a value is taken away.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment;
  std::filesystem::path directory;  // empty: this one
  Stream input = Stream::inherit;
  Stream output = Stream::inherit;
  Stream error = Stream::inherit;
  std::vector<int> inherit;  // descriptors that the child keeps under the same numbers, though they close on exec here
  // A process group of its own: signals from the terminal do not reach it, and signal() and the destructor mean the
  // whole group. Otherwise a helper that should outlast the terminal's Ctrl-C may ignore that signal.
  bool own_group = false;
  bool ignore_interrupt = false;
  int announce = -1;  // the child writes its pid_t here before the program starts, whatever becomes of this process
};

// The path that argv[0] stands for; none when there is no such executable file.
std::optional<std::filesystem::path> find_program(const std::string& name);

class Process {
 public:
  // Returns once the program runs. Throws Error(input) if it is not found, Error(system) if it cannot be started; then
  // no process is left. The child begins with default signal actions and an empty mask (an ignored SIGHUP stays so).
  static Process start(const ProcessOptions& options);

  // Kills the process (and its own group) if it has not ended, and reaps it.
  ~Process();
  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;

  // Belongs to this process until the destructor or leaves_others(), even after its end.
  pid_t pid() const { return pid_; }

  // Our ends of the pipes; nothing where the option was not `pipe`. Close `input` to give the child its end of file.
  // Writing to a child that is gone raises SIGPIPE unless that is ignored.
  Fd input, output, error;

  // None while it runs.
  std::optional<ExitStatus> exit_status();
  // Waits until it has ended or the deadline has passed.
  std::optional<ExitStatus> wait(Deadline deadline);
  // To the process, or its own group. Nothing happens when it is gone.
  void signal(int number);
  // Once it has ended: whether others live on in its own group. Reaps it, so that its id is kept only by them.
  bool leaves_others();

 private:
  Process(pid_t pid, bool own_group) : pid_(pid), own_group_(own_group) {}
  void reap() noexcept;
  void end() noexcept;

  pid_t pid_ = -1;
  bool own_group_ = false;
  bool reaped_ = false;
  std::optional<ExitStatus> status_;
};

}  // namespace trunkline
