// What a run knows of its past beside weights and the optimizer's state; a snapshot keeps it.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace trunkline {

// The best loss of the validations after the first step.
struct BestLoss {
  std::optional<double> loss;
  int64_t step = 0;
  int64_t worse_since = 0;  // validations since then

  // Takes that of a validation after `step`: is it lower than the best by more than `threshold`?
  bool take(int64_t at_step, double new_loss, double threshold);
};

struct RunState {
  int64_t step = 0;  // optimizer steps done; with the seed, this is the data cursor and the state of all randomness
  int64_t trained_tokens = 0;  // targets
  int64_t skipped_steps = 0;   // whose update was left out, for a spike
  BestLoss best;
  // Of each rank, in bytes: what sizes of blocks follow from. None: an older version's.
  std::vector<int64_t> memory_limits;
  std::vector<double> losses, grad_norms;  // of the last steps, where spikes are watched for
};

// Every double comes back with the same bits.
nlohmann::ordered_json to_json(const RunState& state);
// What an older version's lacks is as at a run's start.
RunState run_state_from(const nlohmann::ordered_json& json);

}  // namespace trunkline
