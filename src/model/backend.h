// What computes here: MLX, its device, and the BLAS that serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trunkline {

// "mlx 0.32.4, device cpu, BLAS OpenBLAS 0.3.34 (scipy-openblas32, core SkylakeX, 2 threads)", as found in this
// process.
std::string describe_backend();

// Blocks of a step that are worth queueing before one's end is awaited: on a GPU, more of the short ones of 16 bits.
int64_t blocks_worth_queueing(int64_t bytes_of_a_weight);

// Bytes that the device lets one process use well: on a Mac the recommended working set, elsewhere all of its memory;
// on the processor, the machine's.
int64_t device_memory();

// How memory that MLX has freed is kept, for a process that is to take `limit` bytes of the device: enough for work to
// go on without new memory from the driver, and no more. Once, before work begins.
void bound_freed_memory(int64_t limit);

// Bytes of the device's memory that are taken, by whoever; none where the device does not tell (all but CUDA).
std::optional<int64_t> device_memory_taken();

}  // namespace trunkline
