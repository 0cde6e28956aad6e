// The memory of a run's process.
#pragma once

#include <cstdint>

#include "trunkline/group.h"

namespace trunkline {

// What a step of this rank is planned to take, in bytes: `asked` GiB, or, where that is 0, this rank's share of the
// device's memory.
int64_t memory_for_steps(const Group& group, double asked);

// Throws Error(input), naming the least that works, where a step that takes `least` bytes does not fit in `limit`.
void require_memory(int64_t least, int64_t limit);

}  // namespace trunkline
