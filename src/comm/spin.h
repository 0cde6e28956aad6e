// Whether threads that wait may look for a moment before they sleep.
#pragma once

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/cores.h"
#include "link/hello.h"

namespace trunkline {

// How long: not at all where the lanes of all ranks of this host are more than its cores.
inline std::chrono::nanoseconds spin_for(const std::vector<Member>& members, size_t rank, size_t lanes) {
  const auto neighbours = static_cast<size_t>(
      std::count_if(members.begin(), members.end(), [&](const Member& m) { return m.host == members[rank].host; }));
  const bool spare = neighbours * lanes <= static_cast<size_t>(usable_cores());
  return spare ? std::chrono::microseconds(50) : std::chrono::microseconds(0);
}

}  // namespace trunkline
