// Snapshots: everything a run needs to go on from a step, in OUTPUT/checkpoints/STEP/. A snapshot is written beside,
// synced and renamed into place, so that what stands under a step's number is whole, whenever the process was killed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "train/agreement.h"
#include "train/run_state.h"
#include "trunkline/error.h"

namespace trunkline {

struct Snapshot {
  RunState state;
  uint64_t seed = 0;
  int ranks = 1;
  std::string version;      // of the program that wrote it
  std::vector<Fact> facts;  // what must be the same for the run to go on as if it had not stopped
  Parameters weights;       // of trained tensors, f32, parallel to the layout
  std::vector<std::pair<std::string, mx::array>> optimizer;
};

class SnapshotStore {
 public:
  // The snapshots of the run in `output`, of which the newest `keep` stay. `layout`: of the trained tensors.
  SnapshotStore(const std::filesystem::path& output, std::vector<TensorShape> layout, int64_t keep);

  // Steps of the snapshots that are there, oldest first.
  std::vector<int64_t> steps() const;
  std::filesystem::path path_of(int64_t step) const;

  // Removes what a crashed save left behind.
  void clean() const;

  // The newest snapshot whose files are all as its manifest says; none if there is none. One that is not is set aside
  // as STEP.damaged, and `warnings` says so. Throws Error(mismatch) naming what differs between its facts and `facts`.
  std::optional<Snapshot> load_newest(const std::vector<Fact>& facts, std::vector<std::string>& warnings) const;

  // Whether there is a snapshot of `step` whose files are all as its manifest says. One that is not is set aside too.
  bool holds(int64_t step, std::vector<std::string>& warnings) const;

  // Throws Error(system) if the disk is full, say; the older snapshots then are as they were. That of step `best` stays
  // too.
  void save(const Snapshot& snapshot, std::optional<int64_t> best = std::nullopt) const;

  // The weights of a snapshot of this run. Throws Error(input) if it is damaged or not there.
  Parameters load_weights(int64_t step) const;

 private:
  void write(const Snapshot& snapshot, const std::filesystem::path& directory) const;
  Snapshot load(int64_t step, const std::vector<Fact>& facts) const;
  void keep_newest(std::optional<int64_t> best) const;
  void set_aside(int64_t step, const Error& why, std::vector<std::string>& warnings) const;
  // Throws Error(input) unless all files are as the manifest says.
  nlohmann::ordered_json checked_state(int64_t step) const;
  Parameters read_weights(int64_t step) const;

  std::filesystem::path directory_;
  std::vector<TensorShape> layout_;
  int64_t keep_;
};

}  // namespace trunkline
