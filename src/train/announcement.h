// What a run says of itself before its first step.
#pragma once

#include <string>
#include <vector>

#include "plan/step_blocks.h"
#include "train/dataset.h"
#include "train/step.h"

namespace trunkline {

// A data file in a line.
std::string describe(const DataSummary& summary);

// How steps are computed; `largest`: the largest micro-batch there may be.
std::vector<std::string> describe_step(const StepContext& context, const StepSize& largest);

}  // namespace trunkline
