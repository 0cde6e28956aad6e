// One run at a time in an OUTPUT.
#pragma once

#include <filesystem>

#include "base/fd.h"

namespace trunkline {

// While one lives, no other run gets OUTPUT. It is a lock on the file OUTPUT/.lock, which names the process and its
// host and is removed at the end; a killed run leaves the file and not the lock. OUTPUT is made if need be, and goes
// again if nothing was put into it. Throws Error(input) naming who has it.
class OutputLock {
 public:
  explicit OutputLock(std::filesystem::path output);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  std::filesystem::path output_;
  bool made_ = false;  // OUTPUT was
  Fd file_;
};

}  // namespace trunkline
