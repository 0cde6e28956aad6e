// What computes here: MLX, its device, and the BLAS that serves it.
#pragma once

#include <string>

namespace trunkline {

// "mlx 0.32.4, device cpu, BLAS OpenBLAS 0.3.34 (scipy-openblas32, core SkylakeX, 2 threads)", as found in this
// process.
std::string describe_backend();

}  // namespace trunkline
