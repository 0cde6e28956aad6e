// One optimizer step, over all ranks: forward and backward passes, the sum of the gradients, the update.
#pragma once

#include <cstdint>
#include <span>

#include "model/decoder.h"
#include "plan/step_blocks.h"
#include "train/batches.h"
#include "train/gradient_exchange.h"
#include "train/optimizer.h"
#include "train/sequences.h"
#include "train/shards.h"
#include "train/spikes.h"
#include "train/timeline.h"
#include "train/trained.h"
#include "trunkline/group.h"

namespace trunkline {

struct StepResult {
  double loss = 0.0;       // mean over the step's targets, on all ranks
  double grad_norm = 0.0;  // of the gradient of that mean, before clipping; NaN where it was not made
  // What was a spike: then there was no update, and for a loss no (last) backward pass.
  enum class Spike { none, loss, grad_norm } spike = Spike::none;
  int64_t targets = 0, tokens = 0;
  bool stop = false;  // some rank wishes to stop after this step
  // Of this rank, as Timeline's tracks have them.
  double forward_s = 0.0, backward_s = 0.0, exposed_s = 0.0, update_s = 0.0, communication_s = 0.0;
  // The share of the sums' time that lay behind computation, the last piece's left out, behind which nothing is left;
  // NaN where there is nothing to hide.
  double hidden = 0.0;
  StepBlocks blocks;  // of the last micro-batch here
};

// What steps work on, and how.
struct StepContext {
  Group& group;
  const Decoder& decoder;
  Parameters& parameters;
  const Trained& trained;
  Optimizer& optimizer;
  const Sequences& rows;
  Timeline& timeline;
  double dropout = 0.0;  // of adapters' inputs; its masks are drawn from `seed` and the step's number
  uint64_t seed = 0;
  double max_grad_norm = 0.0;  // 0: no clipping
  // Where spikes are watched for; null: nowhere. grad_norms needs hold_gradients.
  SpikeWatch* losses = nullptr;
  SpikeWatch* grad_norms = nullptr;
  bool accumulates = false;  // several micro-steps to a step
  // All gradients are held until all are checked: asked for, or since clipping or accumulation need them.
  bool hold_gradients = false;
  // The whole graph of a micro-batch at once, and all gradients: the reference.
  bool whole_graph = false;
  GradientExchange::Options exchange = {};
  ShardedWeights* sharded = nullptr;  // each rank updates its parts of these; null: all of all tensors
  StepSize weights = {};              // for the arithmetic of memory: as RunWeights has it
  int64_t memory_limit = 0;           // bytes that a step may take: decides what is kept
  int64_t limit_for_sizes = 0;        // no more than that: decides sizes of blocks
  StepBlocks blocks = {};             // what is not 0 is not chosen; vocab_rows is the same on all ranks and never 0
  Recompute recompute = Recompute::automatic;
};

// Step `number` (from 1): `mine` are this rank's micro-batches, maybe none. The gradient is that of the loss summed
// over the targets of all ranks, divided once by their count, so it does not depend on how the rows were cut. Throws
// Error(numeric) on all ranks if a loss or a gradient is not finite; its message says whether anything was updated.
StepResult run_step(StepContext& context, int64_t number, std::span<const MicroBatch> mine, double learning_rate,
                    bool stop_wish);

// For the arithmetic of memory: a micro-batch of `rows` rows of `tokens` tokens, and the blocks it is computed in.
StepSize size_of(const StepContext& context, int64_t rows, int64_t tokens, int64_t targets);
StepBlocks blocks_for(const StepContext& context, const StepSize& size);

}  // namespace trunkline
