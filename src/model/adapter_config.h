// Adapters as PEFT describes them: the settings of adapter_config.json, and the modules of a model that they name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/model_shape.h"

namespace trunkline {

// Names of modules: a regular expression for whole names, or names and tails of names ("q_proj").
struct ModuleNames {
  std::optional<std::string> pattern;
  std::vector<std::string> list;

  bool empty() const { return !pattern && list.empty(); }
};

// Fields are PEFT's; layers are numbered from 0.
struct AdapterConfig {
  int64_t rank = 8;     // r
  double alpha = 8.0;   // lora_alpha
  bool rslora = false;  // the scale is alpha / sqrt(rank), not alpha / rank
  bool dora = false;
  double dropout = 0.0;
  ModuleNames targets;                         // the pattern "all-linear": all linear layers but the head
  ModuleNames excluded;                        // of the targets
  std::optional<std::vector<int64_t>> layers;  // layers_to_transform; all if absent
  std::vector<std::string> layers_pattern;     // what stands before a layer's number
  std::vector<std::pair<std::string, int64_t>> rank_pattern;  // the first that fits a name counts
  std::vector<std::pair<std::string, double>> alpha_pattern;
  bool ensure_weight_tying = false;
  std::string base;  // base_model_name_or_path
  std::string text;  // the file as it was read; empty: written anew
};

// `path`: an adapter_config.json. Throws Error naming it and the setting that is malformed, or that asks for what is
// not computed here.
AdapterConfig read_adapter_config(const std::filesystem::path& path);

// What adapter_config.json says: `config.text`, or the settings as PEFT writes them.
std::string text_of(const AdapterConfig& config);

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
// `where` begins its message.
AdapterShape adapter_shape(const AdapterConfig& config, const ModelShape& shape, const std::string& where);

// Its tensors: model.layers.0.self_attn.q_proj.lora_A.weight and so on.
std::vector<TensorShape> tensor_shapes(const AdapterShape& shape);

}  // namespace trunkline
