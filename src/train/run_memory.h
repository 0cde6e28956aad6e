// The memory of a run's process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trunkline/group.h"

namespace trunkline {

// What a step of this rank is planned to take, in bytes: `asked` GiB, or, where that is 0, this rank's share of the
// device's memory.
int64_t memory_for_steps(const Group& group, double asked);

// What sizes of blocks follow from, by rank: `limit` of each, or, in a run that goes on, what it was `before`, so that
// the weights stay the same to the last bit. A rank that has less than before takes that, and `notes` say so. All ranks
// call.
std::vector<int64_t> limits_for_sizes(Group& group, int64_t limit, const std::vector<int64_t>& before,
                                      std::vector<std::string>& notes);

// Throws Error(input), naming the least that works, where a step that takes `least` bytes does not fit in `limit`.
void require_memory(int64_t least, int64_t limit);

}  // namespace trunkline
