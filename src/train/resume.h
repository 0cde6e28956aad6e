// Going on from a snapshot, on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/optimizer.h"
#include "train/snapshot.h"
#include "trunkline/group.h"

namespace trunkline {

// Where the run stood.
struct Resumed {
  int64_t step = 0, trained_tokens = 0;
  int ranks = 1;
};

// Rank 0 reads the newest snapshot of `store` (the other ranks have none) and gives it to all: weights and the
// optimizer's state become those of the snapshot. None, and nothing changed, where there is no snapshot. Throws
// Error(mismatch) naming what differs between its facts and `facts`.
std::optional<Resumed> resume(Group& group, const SnapshotStore* store, const std::vector<Fact>& facts,
                              Parameters& parameters, Optimizer& optimizer, std::vector<std::string>& warnings);

}  // namespace trunkline
