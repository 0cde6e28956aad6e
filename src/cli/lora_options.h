// Options of an adapter to train: which modules have one, and how.
#pragma once

#include <map>
#include <string>

#include "cli/option_source.h"
#include "train/options.h"

namespace trunkline {

// Sets options.lora from what is given under the keys num_layers, lora_parameters (a map, as mlx_lm has it), lora_rank,
// lora_scale, lora_alpha, lora_dropout, lora_keys, rslora, adapter and resume_adapter_file. options.fine_tune is set
// before. Throws Error(input) naming what is malformed or contradicts another.
void set_fine_tuning(TrainOptions& options, const std::map<std::string, OptionSource>& sources);

}  // namespace trunkline
