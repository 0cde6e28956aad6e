// Reduction of several ranks' elements: sum, maximum, minimum.
//
// Elements are taken in rank order. Sums of float16 and bfloat16 are accumulated in f32 and rounded once, to nearest,
// ties to even; sums of integers wrap around. In a maximum or minimum a NaN wins, the first rank's of several; of equal
// elements (zeros of both signs) the first rank's is taken.
#pragma once

#include <cstddef>
#include <span>

#include "comm/copy.h"
#include "comm/operation.h"

namespace trunkline {

// out[i] = the reduction of inputs[0][i], inputs[1][i], ... . Pointers may have any alignment; `out` may be an input.
// `copy`: unless null, is given the same, by stores to cache whatever `stores` says of `out`.
void reduce(Reduction reduction, Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out, size_t count,
            std::byte* copy = nullptr, Stores stores = Stores::cached);

// The same in plain loops: what the fast one is compared with.
void reduce_plain(Reduction reduction, Dtype dtype, std::span<const std::byte* const> inputs, std::byte* out,
                  size_t count);

}  // namespace trunkline
