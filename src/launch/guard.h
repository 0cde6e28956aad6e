// Ends the ranks of a launcher that has gone without doing so: killed, say, or crashed.
#pragma once

#include <sys/types.h>

#include <chrono>

#include "base/fd.h"

namespace trunkline {

// A small process in a session of its own that reads from a pipe the process groups to watch over. The end of the pipe
// means that the launcher is gone: the groups then get SIGTERM and, `grace` later, SIGKILL. A rank reports its own
// group before its program starts (ProcessOptions::announce) and holds the pipe until then, so none is ever missed.
class Guard {
 public:
  Guard(int groups, std::chrono::milliseconds grace);  // at most so many groups
  ~Guard();                                            // dismisses it: no group gets a signal
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Where a rank writes its process id, which is also that of its group.
  int announce() const { return pipe_.get(); }

 private:
  Fd pipe_;
  pid_t pid_ = -1;
};

}  // namespace trunkline
