// What a person is told of cables: once a cable, however many lanes notice.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "base/log.h"

namespace trunkline {

class CableLog {
 public:
  // `other_way`: another cable to that rank works.
  void lost(const std::string& cable, bool other_way) {
    const std::lock_guard lock(mutex_);
    if (lanes_[cable]++ > 0) return;
    spdlog::warn("{} brings nothing across: {}", cable,
                 other_way ? "its frames go another way" : "no other way is left, its frames wait for it");
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
