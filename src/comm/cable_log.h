// What a person is told of cables: once a cable, however many lanes notice.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/log.h"

namespace trunkline {

class CableLog {
 public:
  void lost(const std::string& cable) {
    const std::lock_guard lock(mutex_);
    if (lanes_[cable]++ == 0) spdlog::warn("{} brings nothing across: its frames go another way", cable);
  }
  void works_again(const std::string& cable) {
    const std::lock_guard lock(mutex_);
    if (--lanes_[cable] == 0) spdlog::warn("{} works again", cable);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> lanes_;  // that find it lost
};

}  // namespace trunkline
