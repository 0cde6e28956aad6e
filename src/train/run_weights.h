// The weights of a run while they are trained: what the model is computed with, the f32 weights behind that, and the
// optimizer's state, on every rank or shared between them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "model/decoder.h"
#include "plan/step_blocks.h"
#include "train/optimizer.h"
#include "train/shards.h"
#include "train/trained.h"
#include "trunkline/dtype.h"
#include "trunkline/group.h"

namespace trunkline {

class RunWeights {
 public:
  // `parameters`: parallel to the decoder's layout, f32 but for what is packed.
  RunWeights(Group& group, const Decoder& decoder, Trained trained, Parameters parameters);

  const Trained& trained() const { return trained_; }
  // What the model is computed with. With a shared optimizer, of use to others than a step after gather.
  Parameters& parameters() { return parameters_; }

  struct Options {
    OptimizerOptions optimizer = {};
    Dtype dtype = Dtype::f32;  // or bf16: what the model is computed in
    bool masters = false;      // where that is not f32: what is trained goes on in f32
    bool shared = false;       // each rank updates its parts: share comes next
  };
  // From here on steps may be made.
  void begin(const Options& options);
  // Gives each rank the optimizer's state of its parts alone, and their weights in f32: of the pieces of a backward
  // pass.
  void share(int64_t vocab_rows);

  Optimizer& optimizer() { return *optimizer_; }
  const Shards* shards() const { return shards_ ? &*shards_ : nullptr; }
  ShardedWeights* sharded() { return sharded_ ? &*sharded_ : nullptr; }
  // For the arithmetic of memory: of a step's size what depends on weights and optimizer alone, on this rank.
  StepSize size() const;

  // What is trained in f32, parallel to trained().tensors(). Where the optimizer is shared they are rank 0's alone, and
  // the others get none; all ranks call, after gather.
  Parameters trained_weights();
  // The optimizer's state, likewise; and what it goes on from, rank 0's: that of `steps` steps.
  NamedArrays optimizer_state();
  void restore_optimizer(NamedArrays whole, int64_t steps);

  // Before weights are read but by a step, which does so itself. All ranks call.
  void gather();
  // The run's end: optimizer and masters are let go, and then the model may compute with these weights, as
  // trained_weights has them; where it has none, with those that it computes with already.
  void end();
  void compute_with(const Parameters& trained_weights);

 private:
  StepSize::Part trained_part() const;

  Group& group_;
  const Decoder& decoder_;
  Trained trained_;
  Parameters parameters_;
  Options options_;
  std::optional<StepSize::Part> part_;  // where not all is trained
  std::optional<Optimizer> optimizer_;
  std::optional<Shards> shards_;
  std::optional<ShardedWeights> sharded_;
};

}  // namespace trunkline
