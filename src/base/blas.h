// Which BLAS serves this process.
#pragma once

#include <string>

namespace trunkline {

// "OpenBLAS 0.3.34 (scipy-openblas32, core SkylakeX, 2 threads)", "Accelerate", or the file name of another library
// that cblas_sgemm comes from.
std::string describe_blas();

}  // namespace trunkline
