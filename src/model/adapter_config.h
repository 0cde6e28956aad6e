// Adapters as PEFT describes them: the settings of adapter_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

}  // namespace trunkline
