// The rows of a run, on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/options.h"
#include "train/sequences.h"
#include "trunkline/group.h"

namespace trunkline {

struct RunData {
  std::optional<Sequences> train, valid, test;
  std::vector<std::string> warnings;
};

// All ranks at once; the first on each host fills that host's cache of tokenized rows. `vocab`: rows of the embedding.
RunData read_data(Group& group, const TrainOptions& options, int64_t vocab);

}  // namespace trunkline
