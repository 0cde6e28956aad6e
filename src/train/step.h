// One optimizer step, over all ranks: forward and backward passes, the sum of the gradients, the update.
#pragma once

#include <cstdint>
#include <span>

#include "model/decoder.h"
#include "train/batches.h"
#include "train/dataset.h"
#include "train/optimizer.h"
#include "trunkline/group.h"

namespace trunkline {

struct StepResult {
  double loss = 0.0;       // mean over the step's targets, on all ranks
  double grad_norm = 0.0;  // of the gradient of that mean, before clipping
  int64_t targets = 0, tokens = 0;
  bool stop = false;  // some rank wishes to stop after this step
};

// What steps work on. The gradients of a whole step exist at once here.
struct StepContext {
  Group& group;
  const Decoder& decoder;
  Parameters& parameters;
  Optimizer& optimizer;
  const Dataset& rows;
  double max_grad_norm = 0.0;  // 0: no clipping
};

// Step `number` (from 1): `mine` are this rank's micro-batches, maybe none. The gradient is that of the loss summed
// over the targets of all ranks, divided once by their count, so it does not depend on how the rows were cut. Throws
// Error(numeric) on all ranks, before anything is updated, if a loss or a gradient is not finite.
StepResult run_step(StepContext& context, int64_t number, std::span<const MicroBatch> mine, double learning_rate,
                    bool stop_wish);

}  // namespace trunkline
