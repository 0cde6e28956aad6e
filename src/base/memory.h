// The memory that this process takes from the machine: what the system counts, not what an allocator thinks.
#pragma once

#include <cstdint>

namespace trunkline {

struct ProcessMemory {
  int64_t now = 0;   // bytes resident (macOS: the footprint that the system goes by)
  int64_t peak = 0;  // the most that were ever resident
};

ProcessMemory process_memory();

// Bytes that the machine has, or that it gives to the group of processes that this one is of, if that is less.
int64_t machine_memory();

// From here on, large blocks that are freed stay with the process for its next use of them, merged with their
// neighbours, rather than going back to the system, which clears every page before it gives it again (a third of the
// time of a step on a processor that computes). The process then takes what it took at its peak. Only glibc needs this.
void keep_freed_memory();

// Has the pool that CUDA's driver keeps for a device hold up to `bytes` of freed memory. Left alone, it gives all back
// whenever the device is waited for, and to get it again takes longer than the work between. False where this process
// has no driver loaded, or it refuses.
bool keep_in_cuda_pool(int device, uint64_t bytes);

}  // namespace trunkline
