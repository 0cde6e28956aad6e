// The memory that this process takes from the machine: what the system counts, not what an allocator thinks.
#pragma once

#include <cstdint>

namespace trunkline {

struct ProcessMemory {
  int64_t now = 0;   // bytes resident (macOS: the footprint that the system goes by)
  int64_t peak = 0;  // the most that were ever resident
};

ProcessMemory process_memory();

}  // namespace trunkline
