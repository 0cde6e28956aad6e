// Signals as bytes that can be polled for.
#pragma once

#include <csignal>
#include <map>
#include <optional>

#include "base/fd.h"

namespace trunkline {

// While one lives (at most one does), SIGINT, SIGTERM, SIGHUP and SIGCHLD are noted, and SIGPIPE is ignored. A SIGHUP
// that was ignored before (nohup) stays ignored.
class Signals {
 public:
  Signals();
  ~Signals();  // the earlier actions are back
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return pipe_.read.get(); }  // readable when next() has one
  std::optional<int> next();

 private:
  Pipe pipe_;
  std::map<int, struct sigaction> before_;
};

}  // namespace trunkline
