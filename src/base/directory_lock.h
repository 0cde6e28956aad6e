// One process at a time in a directory.
#pragma once

#include <filesystem>
#include <string>

#include "base/fd.h"

namespace trunkline {

// While one lives, nobody else gets the directory. It is a lock on the file .lock in it, which names the process and
// its host and is removed at the end; a killed process leaves the file and not the lock. The directory is made if need
// be, and goes again if nothing was put into it. It may be renamed meanwhile.
class DirectoryLock {
 public:
  static constexpr const char* kFile = ".lock";

  // `option`: what the directory was given by, for messages. Throws Error(input) naming who has it,
  // Error(system) where it cannot be made or written; each begins with `option`.
  DirectoryLock(std::filesystem::path directory, const std::string& option);
  ~DirectoryLock();
  // Throws Error(input) where the directory is no longer the one that is locked: removed, renamed or replaced.
  void require() const;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

 private:
  void take();

  std::filesystem::path directory_;
  std::string option_;
  bool made_ = false;  // here
  Fd opened_, file_;
};

}  // namespace trunkline
