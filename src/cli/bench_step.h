// `trunkline bench step`: how long a training step of several ranks takes, and how much of its communication lies
// behind computation. The queue, the thread that sums, lanes and links are those of training; what computes is a timer
// or a model (cli/step_work.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cli/step_work.h"
#include "train/gradient_exchange.h"
#include "trunkline/group.h"

namespace trunkline {

// Seconds of a step, of the rank that took longest.
struct StepTimes {
  double iteration = 0.0, forward = 0.0, backward = 0.0, update = 0.0;
  double exposed = 0.0;                                  // waiting for sums
  double exposed_gather = 0.0;                           // of a sharded optimizer: waiting for weights
  double communication = 0.0, last_communication = 0.0;  // all sums; that of the last piece
  double hideable = 0.0;  // of communication: no more than computation goes on after the first piece is there
  double hidden = 0.0;    // of it, behind computation; the last piece is left out of both
};

struct StepBenchOptions {
  bool sums = true;  // otherwise every rank computes by itself: the baseline
  GradientExchange::Options exchange;
  int iterations = 5, warmup = 1;
  bool check = false;
};

struct StepBenchResult {
  std::vector<StepTimes> steps;
  StepTimes mean;
  double hidden_fraction = 0.0;  // as Timeline::hidden_share, of the mean; NaN where there is nothing to hide
  // With a sharded optimizer: gathering alone, of the rank that took longest, and the share of it that lay behind the
  // forward pass, the first weights left out; NaN where there is nothing to hide.
  std::optional<GatherTimes> gather;
  double gather_hidden_fraction = 0.0;
  std::optional<uint64_t> wrong;     // of all ranks, if checked
  std::vector<CableTraffic> cables;  // of the timed steps, as a mean
};

// Every rank calls it.
StepBenchResult run_step_bench(Group& group, StepWork& work, Timeline& timeline, const StepBenchOptions& options);

}  // namespace trunkline
