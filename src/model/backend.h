// What computes here: MLX, its device, and the BLAS that serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trunkline {

// "mlx 0.32.4, device cpu, BLAS OpenBLAS 0.3.34 (scipy-openblas32, core SkylakeX, 2 threads)", as found in this
// process.
std::string describe_backend();

// Bytes that the device lets one process use well: on a Mac the recommended working set, elsewhere all of its memory;
// on the processor, the machine's.
int64_t device_memory();

// Bytes of the device's memory that are taken, by whoever; none where the device does not tell (all but CUDA).
std::optional<int64_t> device_memory_taken();

}  // namespace trunkline
