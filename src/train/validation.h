// The loss over rows that are not trained on.
#pragma once

#include <cstdint>

#include "model/decoder.h"
#include "train/sequences.h"
#include "trunkline/group.h"

namespace trunkline {

// Mean loss over the targets of at most `limit` sequences (-1: all), evenly spaced. Each is computed once,
// on one of the ranks, so the value does not depend on their number (to f32 tolerance).
double mean_loss(Group& group, const Decoder& decoder, const Parameters& parameters, const Sequences& rows,
                 int64_t limit, int64_t rows_per_micro_batch);

}  // namespace trunkline
