#include "model/adapter_config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/file.h"
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

// Names of modules are matched whole.
class Pattern {
 public:
  Pattern(const std::string& text, const std::string& where, const std::string& key) {
    try {
      regex_.assign(text);
    } catch (const std::regex_error&) {
      fail(ErrorKind::unsupported,
           "{}: {}: \"{}\" is not read as a regular expression here; name the modules in a list", where, key, text);
    }
  }
  bool fits(const std::string& name) const { return std::regex_match(name, regex_); }
  // The number that the last group holds where `name` begins with the pattern.
  std::optional<int64_t> number_in(const std::string& name) const {
    std::smatch match;
    if (!std::regex_search(name, match, regex_, std::regex_constants::match_continuous)) return std::nullopt;
    return std::stoll(match[match.size() - 1].str());
  }

 private:
  std::regex regex_;
};

struct Module {
  std::string name;
  bool adaptable = false, embedding = false;
  int64_t in = 0, out = 0;
};

// The model's modules, parents too, in the order of the forward pass.
std::vector<Module> modules_of(const ModelShape& shape) {
  std::vector<Module> modules;
  std::set<std::string> parents;
  ModelShape plain = shape;
  plain.tied = false;  // a tied head is a module of its own
  plain.quantization.reset();
  for (const TensorShape& tensor : tensor_shapes(plain)) {
    if (!tensor.name.ends_with(".weight")) continue;
    Module module{.name = tensor.name.substr(0, tensor.name.rfind('.'))};
    for (size_t dot = module.name.find('.'); dot != std::string::npos; dot = module.name.find('.', dot + 1)) {
      const std::string parent = module.name.substr(0, dot);
      if (parents.insert(parent).second) modules.push_back({.name = parent});
    }
    if (tensor.dims.size() == 2) {
      module.adaptable = true;
      module.embedding = module.name == "model.embed_tokens";
      module.in = tensor.dims[module.embedding ? 0 : 1];
      module.out = tensor.dims[module.embedding ? 1 : 0];
    }
    modules.push_back(module);
  }
  return modules;
}

// "model.layers.3.mlp.up_proj" -> 3
std::optional<int64_t> layer_of(const std::string& name) {
  static const std::regex layer(R"(model\.layers\.(\d+)\..*)");
  std::smatch match;
  if (!std::regex_match(name, match, layer)) return std::nullopt;
  return std::stoll(match[1].str());
}

class Selection {
 public:
  Selection(const AdapterConfig& config, const ModelShape& shape, const std::string& where) : config_(config) {
    if (config.targets.pattern) {
      std::string lower = *config.targets.pattern;
      std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
      all_linear_ = lower == "all-linear";
      if (!all_linear_) targets_.emplace(*config.targets.pattern, where, "target_modules");
      if (config.layers || !config.layers_pattern.empty()) {
        fail(ErrorKind::input, "{}: layers_to_transform and layers_pattern go with a list of target_modules alone",
             where);
      }
    }
    if (config.excluded.pattern) excluded_.emplace(*config.excluded.pattern, where, "exclude_modules");
    if (!config.layers_pattern.empty() && !config.layers) {
      fail(ErrorKind::input, "{}: layers_pattern without layers_to_transform", where);
    }
    for (const std::string& pattern : config.layers_pattern) {
      layers_.emplace_back(R"((?:^|.*?\.)(?:)" + pattern + R"()\.(\d+)\.)", where, "layers_pattern");
    }
    for (const int64_t layer : config.layers.value_or(std::vector<int64_t>{})) {
      if (layer < shape.layers) continue;
      fail(ErrorKind::input, "{}: layers_to_transform: there is no layer {} in a model of {}", where, layer,
           shape.layers);
    }
  }

  // Throws Error naming what is to be left out and is not there; returns the same of the targets.
  std::vector<std::string> unknown(const std::vector<Module>& modules, const std::string& where) const {
    const auto fits_none = [&](const ModuleNames& names, const std::optional<Pattern>& pattern) {
      return std::ranges::none_of(modules, [&](const Module& it) { return listed(names, pattern, it.name); });
    };
    if (excluded_ && fits_none(config_.excluded, excluded_)) {
      fail(ErrorKind::input, "{}: exclude_modules: no module of this model fits \"{}\"", where,
           *config_.excluded.pattern);
    }
    for (const std::string& name : config_.excluded.list) {
      if (!fits_none({.pattern = {}, .list = {name}}, {})) continue;
      fail(ErrorKind::input, "{}: exclude_modules: no module of this model is named {}", where, name);
    }
    std::vector<std::string> unknown;
    for (const std::string& name : config_.targets.list) {
      if (fits_none({.pattern = {}, .list = {name}}, {})) unknown.push_back(name);
    }
    return unknown;
  }

  bool takes(const Module& module) const {
    if (listed(config_.excluded, excluded_, module.name)) return false;
    if (all_linear_) return module.adaptable && !module.embedding && module.name != "lm_head";
    if (!listed(config_.targets, targets_, module.name)) return false;
    // A whole name that is listed is taken whatever its layer.
    if (!config_.layers || std::ranges::count(config_.targets.list, module.name) > 0) return true;
    std::optional<int64_t> layer;
    if (layers_.empty()) layer = layer_of(module.name);
    for (size_t i = 0; i < layers_.size() && !layer; ++i) layer = layers_[i].number_in(module.name);
    return layer && std::ranges::count(*config_.layers, *layer) > 0;
  }

 private:
  static bool listed(const ModuleNames& names, const std::optional<Pattern>& pattern, const std::string& name) {
    if (pattern) return pattern->fits(name);
    return std::ranges::any_of(names.list,
                               [&](const std::string& it) { return name == it || name.ends_with("." + it); });
  }

  const AdapterConfig& config_;
  bool all_linear_ = false;
  std::optional<Pattern> targets_, excluded_;
  std::vector<Pattern> layers_;
};

// A value by the first pattern that fits the end of a name.
template <typename Value>
class ByPattern {
 public:
  ByPattern(const std::vector<std::pair<std::string, Value>>& entries, Value other, const std::string& where,
            const std::string& key, const std::vector<Module>& modules)
      : other_(other) {
    for (const auto& [text, value] : entries) {
      const Pattern pattern("(?:.*\\.)?(?:" + text + ")", where, key);
      if (std::ranges::none_of(modules, [&](const Module& it) { return pattern.fits(it.name); })) {
        fail(ErrorKind::input, "{}: {}: no module of this model fits \"{}\"", where, key, text);
      }
      entries_.emplace_back(pattern, value);
    }
  }
  Value of(const std::string& name) const {
    for (const auto& [pattern, value] : entries_) {
      if (pattern.fits(name)) return value;
    }
    return other_;
  }

 private:
  std::vector<std::pair<Pattern, Value>> entries_;
  Value other_;
};

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
    fail(ErrorKind::input, "{}: not JSON: {}", file, error.what());
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

AdapterShape adapter_shape(const AdapterConfig& config, const ModelShape& shape, const std::string& where) {
  const std::vector<Module> modules = modules_of(shape);
  const Selection selection(config, shape, where);
  const ByPattern<int64_t> ranks(config.rank_pattern, config.rank, where, "rank_pattern", modules);
  const ByPattern<double> alphas(config.alpha_pattern, config.alpha, where, "alpha_pattern", modules);
  AdapterShape adapted{.modules = {}, .warnings = {}, .dora = config.dora, .dropout = config.dropout};
  const std::vector<std::string> unknown = selection.unknown(modules, where);
  for (const Module& module : modules) {
    if (!selection.takes(module)) continue;
    if (!module.adaptable) {
      fail(ErrorKind::unsupported,
           "{}: target_modules: {} cannot have an adapter: linear layers, embed_tokens and "
           "lm_head can",
           where, module.name);
    }
    const bool tied = shape.tied && (module.embedding || module.name == "lm_head");
    if (tied && config.ensure_weight_tying) {
      fail(ErrorKind::unsupported,
           "{}: ensure_weight_tying: an adapter that embedding and head share is not computed; without it, {} has one "
           "of its own",
           where, module.name);
    }
    const int64_t rank = ranks.of(module.name);
    const auto divisor = static_cast<double>(rank);
    adapted.modules.push_back({.name = module.name,
                               .rank = rank,
                               .scale = alphas.of(module.name) / (config.rslora ? std::sqrt(divisor) : divisor),
                               .embedding = module.embedding,
                               .in = module.in,
                               .out = module.out});
  }
  if (adapted.modules.empty()) {
    fail(ErrorKind::input, "{}: target_modules: no module of this model is named{}{}", where,
         unknown.empty() ? "" : " ", fmt::join(unknown, " or "));
  }
  for (const std::string& name : unknown) {
    adapted.warnings.push_back(fmt::format("{}: target_modules: no module of this model is named {}", where, name));
  }
  return adapted;
}

std::vector<TensorShape> tensor_shapes(const AdapterShape& shape) {
  std::vector<TensorShape> tensors;
  for (const AdaptedModule& module : shape.modules) {
    const auto name = [&](const char* part) {
      return fmt::format("{}.lora_{}{}{}", module.name, module.embedding ? "embedding_" : "", part,
                         module.embedding ? "" : ".weight");
    };
    tensors.push_back({name("A"), {module.rank, module.in}});
    tensors.push_back({name("B"), {module.out, module.rank}});
    if (shape.dora) tensors.push_back({module.name + ".lora_magnitude_vector", {module.out}});
  }
  return tensors;
}

}  // namespace trunkline
