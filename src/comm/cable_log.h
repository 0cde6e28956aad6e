// What a person is told of cables and of ranks that nothing comes from: once, however many lanes notice.
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
    if (!begins(cable)) return;
    spdlog::warn("{} brings nothing across: {}", cable,
                 other_way ? "its frames go another way" : "no other way is left, its frames wait for it");
  }
  void works_again(const std::string& cable) {
    if (ends(cable)) spdlog::warn("{} works again", cable);
  }
  // `cables`: all that lead to the rank.
  void silent(const std::string& rank, const std::string& cables) {
    if (!begins(rank)) return;
    spdlog::warn(
        "nothing comes from {} over {}: its process is stopped or starved, or nothing crosses any of its cables", rank,
        cables);
  }
  void heard_again(const std::string& rank) {
    if (ends(rank)) spdlog::warn("{} is heard again", rank);
  }

 private:
  bool begins(const std::string& subject) {
    const std::lock_guard lock(mutex_);
    return lanes_[subject]++ == 0;
  }
  bool ends(const std::string& subject) {
    const std::lock_guard lock(mutex_);
    return --lanes_[subject] == 0;
  }

  std::mutex mutex_;
  std::map<std::string, int> lanes_;  // that find it so
};

}  // namespace trunkline
