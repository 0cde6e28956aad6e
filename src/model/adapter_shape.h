// Which modules of a model an adapter has, and what it computes there.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/adapter_config.h"
#include "plan/model_shape.h"

namespace trunkline {

// A linear layer [out, in] with an adapter, or the embedding (`out` values for each of `in` ids).
struct AdaptedModule {
  std::string name;  // model.layers.0.self_attn.q_proj
  int64_t rank = 0;
  double scale = 0.0;
  bool embedding = false;
  int64_t in = 0, out = 0;
};

// An adapter as a decoder computes it.
struct AdapterShape {
  std::vector<AdaptedModule> modules;  // in the order of the forward pass
  std::vector<std::string> warnings;   // entries of target_modules that name no module, which PEFT lets pass
  bool dora = false;
  double dropout = 0.0;
};

// The modules that `config` names in a model. Throws Error if there is none, if one cannot have an adapter, if a
// pattern is no regular expression, or if an entry of exclude_modules, rank_pattern or alpha_pattern fits no module.
// `where` begins its message; `targets`: what the modules to adapt were given as.
AdapterShape adapter_shape(const AdapterConfig& config, const ModelShape& shape, const std::string& where,
                           const std::string& targets = "target_modules");

// Its tensors: model.layers.0.self_attn.q_proj.lora_A.weight and so on.
std::vector<TensorShape> tensor_shapes(const AdapterShape& shape);

}  // namespace trunkline
