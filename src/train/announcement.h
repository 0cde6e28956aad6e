// What a run says of itself before its first step.
#pragma once

#include <string>
#include <vector>

#include "model/adapter_shape.h"
#include "plan/step_blocks.h"
#include "train/options.h"
#include "train/sequences.h"
#include "train/step.h"

namespace trunkline {

// A data file, and how its rows are packed, in a line.
std::string describe(const Sequences& sequences);

// What is trained: an adapter, of which model; or in a full fine-tuning the decoder's tensors, or some of its layers.
std::string describe(const AdapterShape& adapter, const ModelShape& shape);
std::string describe(const Trained& trained, const Decoder& decoder);

// What of the options counts among several ranks, or on this device; and that it does nothing, where it does not.
std::vector<std::string> describe_ranks(const TrainOptions& options, int ranks);

// How steps are computed; `largest`: the largest micro-batch there may be.
std::vector<std::string> describe_step(const StepContext& context, const StepSize& largest);

}  // namespace trunkline
