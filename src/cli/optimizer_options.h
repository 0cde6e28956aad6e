// Options of the optimizer and of its learning rate.
#pragma once

#include <map>
#include <string>

#include "cli/option_source.h"
#include "train/options.h"

namespace trunkline {

// Sets options.optimizer from what is given under optimizer_config (a map, as mlx_lm has it) and under weight_decay,
// momentum, beta1, beta2 and eps, which go over it. options.optimizer_name is set before; what optimizer_config has for
// others is checked alike, and left out. Throws Error(input) naming what is malformed or no option of the optimizer.
void set_optimizer(TrainOptions& options, const std::map<std::string, OptionSource>& sources);

// Sets options.schedule from what is given under lr_schedule and warmup. options.learning_rate is set before.
void set_schedule(TrainOptions& options, const std::map<std::string, OptionSource>& sources);

}  // namespace trunkline
