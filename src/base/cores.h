// The processor cores that this process may use.
#pragma once

#include <string>
#include <string_view>

namespace trunkline {

// At least 1: the cores of its affinity mask, and no more than its control group's quota pays for (cgroup v2).
int usable_cores();

// A quota as in cpu.max ("200000 100000", "max 100000") in whole cores, rounded up; 0: none.
int quota_cores(std::string_view cpu_max);

}  // namespace trunkline
