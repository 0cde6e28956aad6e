// The parts of a golden case: what is computed here against what is written there.
#pragma once

#include <string>
#include <vector>

#include "conform/adapter_case.h"
#include "conform/golden_case.h"

namespace trunkline::conform {

struct PartResult {
  std::string part;
  double worst = 0;      // difference, in the terms of the part's tolerance; infinite where something is not finite
  double tolerance = 0;  // what `worst` may be at most
  std::string note;      // where, and against what
  bool ok = false;
};

// Every part, in the order of the forward pass, the backward pass, the optimizers and generation.
std::vector<PartResult> run_parts(const GoldenCase& golden);
// Of an adapter: its files too, and its merging.
std::vector<PartResult> run_parts(const AdapterCase& golden);

}  // namespace trunkline::conform
