// What computes here: MLX, its device, and the BLAS that serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trunkline {

// "mlx 0.32.4, device cpu, BLAS OpenBLAS 0.3.34 (scipy-openblas32, core SkylakeX, 2 threads)", as found in this
// process.
std::string describe_backend();

// On the processor, not a GPU?
bool computes_on_cpu();

// Blocks of a step that the device has at once, and how many take memory at once in forecasts. On a GPU, MLX itself has
// what is queued wait where memory runs short (bound_memory). On the processor a queued operation has its memory at
// once and keeps hold of what it will give: the next block would not be written into it, but into a copy.
int64_t blocks_to_queue();
int64_t blocks_at_once();

// Bytes that the device lets one process use well: on a Mac the recommended working set, elsewhere all of its memory;
// on the processor, the machine's.
int64_t device_memory();

// For a process that is to take `limit` bytes of the device: work that is queued waits for memory before it would take
// more, and of freed memory enough is kept for work to go on without new memory from the driver. Once, before MLX
// works.
void bound_memory(int64_t limit);

// Bytes of the device's memory that are taken, by whoever; none where the device does not tell (all but CUDA).
std::optional<int64_t> device_memory_taken();

}  // namespace trunkline
