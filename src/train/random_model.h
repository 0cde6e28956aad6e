// What measurements of a step work on where no model or data are at hand: weights and tokens at random, of any shape.
#pragma once

#include <cstdint>

#include "model/decoder.h"
#include "train/loss.h"

namespace trunkline {

// Evaluated, in `dtype`; the same for the same seed. Norms are ones.
Parameters random_weights(const Decoder& decoder, mx::Dtype dtype, uint64_t seed);

// Every token but the first of a row is a target.
Batch random_batch(int rows, int tokens, int64_t vocab, uint64_t seed);

}  // namespace trunkline
