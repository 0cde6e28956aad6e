// RopeShape from config.json, in both of its spellings.
#pragma once

#include "plan/config_reader.h"
#include "plan/model_shape.h"

namespace trunkline {

// Reads rope_parameters, or rope_theta with rope_scaling; where both are given they must agree.
// `max_positions`: what original_max_position_embeddings is when absent.
RopeShape read_rope_shape(const ConfigReader& config, int64_t max_positions);

}  // namespace trunkline
