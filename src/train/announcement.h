// What a run says of itself before its first step.
#pragma once

#include <string>
#include <vector>

#include "model/adapter_config.h"
#include "plan/step_blocks.h"
#include "train/sequences.h"
#include "train/step.h"

namespace trunkline {

// A data file, and how its rows are packed, in a line.
std::string describe(const Sequences& sequences);

// What an adapter trains, of which model.
std::string describe(const AdapterShape& adapter, const ModelShape& shape);

// How steps are computed; `largest`: the largest micro-batch there may be.
std::vector<std::string> describe_step(const StepContext& context, const StepSize& largest);

}  // namespace trunkline
