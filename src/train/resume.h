// Going on from a snapshot, on every rank.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "train/optimizer.h"
#include "train/shards.h"
#include "train/snapshot.h"
#include "trunkline/group.h"

namespace trunkline {

// Where the run stood.
struct Resumed {
  RunState state;
  int ranks = 1;
  bool has_best = false;  // there is a snapshot of state.best.step
};

// Rank 0 reads the newest snapshot of `store` (the other ranks have none) and gives it to all: trained weights
// and the optimizer's state become those of the snapshot. None, and nothing changed, where there is no snapshot. Throws
// Error(mismatch) naming what differs between its facts and `facts`. `shards`: not null if the optimizer is of their
// parts.
std::optional<Resumed> resume(Group& group, const SnapshotStore* store, const std::vector<Fact>& facts,
                              Parameters& parameters, const Trained& trained, Optimizer& optimizer,
                              const Shards* shards, std::vector<std::string>& warnings);

// Rank 0 reads the weights of the snapshot of `step` and gives them to all.
void load_weights(Group& group, const SnapshotStore* store, int64_t step, Parameters& parameters,
                  const Trained& trained);

}  // namespace trunkline
