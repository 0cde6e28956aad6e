// What a benchmark sends and what must come of it: computed here from the elements' numbers, by no code of the
// collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "trunkline/dtype.h"

namespace trunkline {

// The data of one call; another seed gives other data. Integers take all their values. Floating-point numbers are whole
// and small enough for the sum of up to 1024 ranks to be exact in f32; those of 16 bits then need a rounding.
struct BenchData {
  Dtype dtype = Dtype::f32;
  uint64_t seed = 0;

  // Elements begin, begin + 1, ... of what `rank` sends.
  void fill(int rank, size_t begin, size_t count, std::byte* to) const;

  // How many of the `count` elements are not, bit for bit, the sum over `ranks` of their elements begin, begin + 1, ...
  // (accumulated in f32 for 16-bit types and rounded once, wrapped around for integers).
  size_t count_wrong(std::span<const int> ranks, size_t begin, size_t count, const std::byte* got) const;
};

}  // namespace trunkline
