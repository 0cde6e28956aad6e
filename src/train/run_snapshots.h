// The snapshots of a run: saved as it goes, gone on from, and the best of them. Rank 0 reads and writes them, all ranks
// call.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "train/run_state.h"
#include "train/run_weights.h"
#include "train/snapshot.h"
#include "trunkline/group.h"

namespace trunkline {

// Where the run stood.
struct Resumed {
  RunState state;
  int ranks = 1;
  NamedArrays optimizer;  // rank 0's, for RunWeights::restore_optimizer
};

class RunSnapshots {
 public:
  // In `output`: the newest `keep`, and if `keeps_best` that of the best validation. `layout`: of what is trained.
  RunSnapshots(Group& group, const std::filesystem::path& output, const std::vector<TensorShape>& layout, int64_t keep,
               bool keeps_best);

  // Removes what a crashed save left behind.
  void clean() const;

  // The newest snapshot: trained weights become those of it; `weights` have not begun. None, and nothing changed, where
  // there is none. Throws Error(mismatch) naming what differs between its facts and `facts`. Rank 0's `warnings` tell
  // which ones were damaged, that of the best validation too.
  std::optional<Resumed> resume(const std::vector<Fact>& facts, RunWeights& weights,
                                std::vector<std::string>& warnings);

  // Throws if a trained weight is not finite: Error(numeric), naming the first and the last good snapshot, on rank 0,
  // and Error(peer) with the same message on the others.
  void save(const RunState& state, uint64_t seed, const std::vector<Fact>& facts, RunWeights& weights);

  std::filesystem::path path_of(int64_t step) const;
  // For the message of a run that cannot go on.
  std::string last_good() const;
  // Runs `work`. Where something from outside ends it (a full disk, another rank), which need not be there the next
  // time, the message says how to go on, once.
  void or_say_how_to_go_on(const std::function<void()>& work) const;

  // Whether there is one of the best validation so far; and its weights, in place of `weights` (what is trained, f32),
  // on all ranks.
  bool has_best(const RunState& state) const { return best_ != 0 && best_ == state.best.step; }
  void load_best(Parameters& weights) const;
  // Where best ones are kept and that one is not there; `saved_at_end`: it was to become the model.
  void warn_of_lost_best(const RunState& state, bool saved_at_end, bool nothing_left,
                         std::vector<std::string>& warnings) const;

 private:
  // Rank 0's.
  bool holds_best(const RunState& state, std::vector<std::string>& warnings) const;
  Parameters load_best_here() const;

  Group& group_;
  SnapshotStore store_;
  std::vector<TensorShape> layout_;
  bool keeps_best_;
  int64_t saved_ = 0, best_ = 0;  // steps of the newest snapshot and of that of a best validation; 0: none
};

}  // namespace trunkline
