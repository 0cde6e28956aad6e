// 16-bit floats to f32 and back: partial sums of them travel in f32.
#pragma once

#include <cstddef>

#include "trunkline/dtype.h"

namespace trunkline {

// `dtype`: f16 or bf16. Pointers may have any alignment; the buffers do not overlap.
void widen(Dtype dtype, const std::byte* in, std::byte* out, size_t count);
// Rounds to nearest, ties to even, as reduce() does.
void narrow(Dtype dtype, const std::byte* in, std::byte* out, size_t count);

}  // namespace trunkline
