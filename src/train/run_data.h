// The rows of a run, on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/interrupt.h"
#include "train/options.h"
#include "train/sequences.h"
#include "trunkline/group.h"

namespace trunkline {

struct RunData {
  std::optional<Sequences> train, valid, test;
  std::vector<std::string> warnings;
};

// All ranks at once; the first on each host fills that host's cache of tokenized rows. `vocab`: rows of the embedding.
// None, on all ranks, if one is interrupted meanwhile, which rank 0 says: the rows are not waited for.
std::optional<RunData> read_data(Group& group, const TrainOptions& options, int64_t vocab,
                                 const InterruptWatch& interrupts);

}  // namespace trunkline
