// A training run from its options to the saved model.
#pragma once

#include "train/options.h"
#include "trunkline/group.h"

namespace trunkline {

enum class TrainOutcome { finished, interrupted };

// Every rank of the group calls it with the same options (paths may differ). Rank 0 alone prints and writes to OUTPUT.
// Interrupted: SIGINT or SIGTERM came, the step was finished and a snapshot saved. Throws Error; the snapshots saved
// before stay.
TrainOutcome train(const TrainOptions& options, Group& group);

}  // namespace trunkline
