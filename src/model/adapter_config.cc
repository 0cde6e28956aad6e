#include "model/adapter_config.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "base/json_reason.h"
#include "plan/config_reader.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

// Settings that change what an adapter computes, with what is done instead of each. They must be off.
const std::map<std::string, std::string>& must_be_off() {
  const std::string variant = "only LoRA, rsLoRA and DoRA are computed";
  static const std::map<std::string, std::string> all = {
      {"alora_invocation_tokens", variant},
      {"fan_in_fan_out", "weights are stored [out, in]"},
      {"arrow_config", variant},
      {"kasa_config", variant},
      {"monteclora_config", variant},
      {"use_bdlora", variant},
      {"use_qalora", variant},
      {"velora_config", variant},
      {"layer_replication", "layers are not repeated"},
      {"lora_bias", "B has no bias; train without it"},
      {"megatron_config", "layers are whole on every rank"},
      {"modules_to_save", "an adapter holds no modules trained in full; target them, or fine-tune in full"},
      {"target_parameters", "modules alone have adapters: target_modules names them"},
      {"trainable_token_indices", "single tokens are not trained; target embed_tokens"},
  };
  return all;
}

// Settings that do not enter the result once an adapter exists.
bool is_without_effect(const std::string& key) {
  static const std::set<std::string> all = {
      "auto_mapping",   "corda_config",  "eva_config",   "inference_mode", "loftq_config",
      "lora_ga_config", "megatron_core", "peft_version", "revision",       "qalora_group_size",
  };
  return all.contains(key);
}

bool is_off(const nlohmann::json& value) {
  return value.is_null() || value == false || ((value.is_array() || value.is_object()) && value.empty());
}

double number(const ConfigReader& config, const std::string& key, double absent) {
  if (!config.has(key)) return absent;
  if (!config.at(key).is_number()) config.reject(key, "is not a number");
  return config.at(key).get<double>();
}

std::vector<std::string> names(const ConfigReader& config, const std::string& key) {
  if (!config.has(key)) return {};
  if (config.at(key).is_string()) return {config.text(key)};
  std::vector<std::string> list;
  if (!config.at(key).is_array()) config.reject(key, "is neither a name nor a list of names");
  for (const nlohmann::json& name : config.at(key)) {
    if (!name.is_string() || name.get<std::string>().empty()) config.reject(key, "is not a list of names");
    list.push_back(name);
  }
  return list;
}

ModuleNames module_names(const ConfigReader& config, const std::string& key) {
  ModuleNames found;
  found.list = names(config, key);
  if (config.has(key) && config.at(key).is_string()) {
    found.pattern = found.list.front();
    found.list.clear();
    if (found.pattern->empty()) config.reject(key, "is empty");
  }
  return found;
}

std::optional<std::vector<int64_t>> read_layers(const ConfigReader& config) {
  constexpr const char* kKey = "layers_to_transform";
  if (!config.has(kKey)) return std::nullopt;
  if (!config.at(kKey).is_array()) return {{config.integer(kKey, 0)}};
  std::vector<int64_t> layers;
  for (const nlohmann::json& layer : config.at(kKey)) {
    if (!layer.is_number_unsigned()) config.reject(kKey, "is not a list of layers' numbers");
    layers.push_back(layer);
  }
  if (layers.empty()) return std::nullopt;  // as PEFT takes it
  return layers;
}

// The order of a pattern's entries counts: `ordered` is the same object as `config`, in the file's order.
template <typename Value>
std::vector<std::pair<std::string, Value>> read_pattern(const ConfigReader& config,
                                                        const nlohmann::ordered_json& ordered, const std::string& key) {
  std::vector<std::pair<std::string, Value>> found;
  if (!config.has(key)) return found;
  if (!config.at(key).is_object()) config.reject(key, "is not an object");
  for (const auto& [name, value] : ordered[key].items()) {
    const bool fits = std::is_integral_v<Value> ? value.is_number_unsigned() && value != 0 : value.is_number();
    if (!fits) config.reject(key, "has a value that is not a positive number");
    found.emplace_back(name, value.template get<Value>());
  }
  return found;
}

void refuse_what_is_not_computed(const ConfigReader& config, const nlohmann::json& json) {
  if (config.text("peft_type") != "LORA") config.unsupported("peft_type", "adapters are of type LORA");
  if (config.has("task_type") && config.at("task_type") != "CAUSAL_LM") {
    config.unsupported("task_type", "models are of type CAUSAL_LM");
  }
  if (config.has("bias") && config.at("bias") != "none") {
    config.unsupported("bias", "biases of the base are frozen: \"none\"");
  }
  for (const auto& [key, why] : must_be_off()) {
    if (config.has(key) && !is_off(config.at(key))) config.unsupported(key, why);
  }
  // Of the ways to begin, those that change the base's weights have no meaning without these.
  if (config.has("init_lora_weights")) {
    const nlohmann::json& way = config.at("init_lora_weights");
    static const std::set<std::string> harmless = {"gaussian", "orthogonal", "eva"};
    if (!way.is_boolean() && !(way.is_string() && harmless.contains(way.get<std::string>()))) {
      config.unsupported("init_lora_weights", "it begins from changed weights of the base; save it converted to LoRA");
    }
  }
  static const std::set<std::string> read = {"alpha_pattern",
                                             "base_model_name_or_path",
                                             "bias",
                                             "ensure_weight_tying",
                                             "exclude_modules",
                                             "init_lora_weights",
                                             "layers_pattern",
                                             "lora_alpha",
                                             "layers_to_transform",
                                             "lora_dropout",
                                             "peft_type",
                                             "r",
                                             "rank_pattern",
                                             "target_modules",
                                             "task_type",
                                             "use_dora",
                                             "use_rslora"};
  for (const auto& [key, value] : json.items()) {
    if (read.contains(key) || must_be_off().contains(key) || is_without_effect(key) || is_off(value)) continue;
    config.unsupported(key, "the setting is not known here");
  }
}

nlohmann::ordered_json whole_if_whole(double value) {
  if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
  return value;
}

}  // namespace

AdapterConfig read_adapter_config(const fs::path& path) {
  const std::string file = path.string();
  AdapterConfig result;
  result.text = read_file(path);
  nlohmann::json json;
  nlohmann::ordered_json ordered;
  try {
    json = nlohmann::json::parse(result.text);
    ordered = nlohmann::ordered_json::parse(result.text);
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::input, "{}: not JSON: {}", file, json_reason(error.what()));
  }
  const ConfigReader config(json, file);
  if (!config.has("peft_type") && (config.has("lora_parameters") || config.has("fine_tune_type"))) {
    fail(ErrorKind::unsupported, "{}: an adapter in mlx-lm's layout; PEFT's is read (peft_type is missing)", file);
  }
  refuse_what_is_not_computed(config, json);
  result.rank = config.integer_or("r", 8);
  result.alpha = number(config, "lora_alpha", 8.0);
  result.rslora = config.flag_or("use_rslora", false);
  result.dora = config.flag_or("use_dora", false);
  result.dropout = number(config, "lora_dropout", 0.0);
  if (!(result.dropout >= 0.0) || result.dropout >= 1.0) config.reject("lora_dropout", "is not in [0, 1)");
  result.targets = module_names(config, "target_modules");
  if (result.targets.empty()) config.wrong("target_modules: no module is named");
  result.excluded = module_names(config, "exclude_modules");
  result.layers = read_layers(config);
  result.layers_pattern = names(config, "layers_pattern");
  result.rank_pattern = read_pattern<int64_t>(config, ordered, "rank_pattern");
  result.alpha_pattern = read_pattern<double>(config, ordered, "alpha_pattern");
  result.ensure_weight_tying = config.flag_or("ensure_weight_tying", false);
  if (config.has("base_model_name_or_path")) result.base = config.text("base_model_name_or_path");
  return result;
}

std::string text_of(const AdapterConfig& config) {
  if (!config.text.empty()) return config.text;
  using Json = nlohmann::ordered_json;
  const auto names_json = [](const ModuleNames& names) -> Json {
    if (names.pattern) return *names.pattern;
    return names.list.empty() ? Json(nullptr) : Json(names.list);
  };
  const auto pattern_json = [](const auto& pattern) {
    Json object = Json::object();
    for (const auto& [name, value] : pattern) object[name] = whole_if_whole(static_cast<double>(value));
    return object;
  };
  const Json json = {{"alpha_pattern", pattern_json(config.alpha_pattern)},
                     {"auto_mapping", nullptr},
                     {"base_model_name_or_path", config.base},
                     {"bias", "none"},
                     {"exclude_modules", names_json(config.excluded)},
                     {"fan_in_fan_out", false},
                     {"inference_mode", true},
                     {"init_lora_weights", true},
                     {"layers_pattern", config.layers_pattern.empty() ? Json(nullptr) : Json(config.layers_pattern)},
                     {"layers_to_transform", config.layers ? Json(*config.layers) : Json(nullptr)},
                     {"lora_alpha", whole_if_whole(config.alpha)},
                     {"lora_dropout", config.dropout},
                     {"modules_to_save", nullptr},
                     {"peft_type", "LORA"},
                     {"r", config.rank},
                     {"rank_pattern", pattern_json(config.rank_pattern)},
                     {"revision", nullptr},
                     {"target_modules", names_json(config.targets)},
                     {"task_type", "CAUSAL_LM"},
                     {"use_dora", config.dora},
                     {"use_rslora", config.rslora}};
  return json.dump(2) + "\n";
}

}  // namespace trunkline
