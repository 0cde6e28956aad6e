// The least memory that a step can be given.
#pragma once

#include <cstdint>
#include <string>

#include "plan/step_blocks.h"

namespace trunkline {

// The least limit in which choose_blocks finds a step that fits.
int64_t least_limit(const ModelShape& shape, const StepSize& size, const StepBlocks& asked = {},
                    Recompute recompute = Recompute::automatic);

// "3.25 GiB"; under one, "12.3 MiB".
std::string memory_text(int64_t bytes);

}  // namespace trunkline
