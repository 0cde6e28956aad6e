#include "model/adapter_shape.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "base/fail.h"

namespace trunkline {
namespace {

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

}  // namespace

AdapterShape adapter_shape(const AdapterConfig& config, const ModelShape& shape, const std::string& where,
                           const std::string& targets) {
  const std::vector<Module> modules = modules_of(shape);
  const Selection selection(config, shape, where);
  const ByPattern<int64_t> ranks(config.rank_pattern, config.rank, where, "rank_pattern", modules);
  const ByPattern<double> alphas(config.alpha_pattern, config.alpha, where, "alpha_pattern", modules);
  AdapterShape adapted{.modules = {}, .warnings = {}, .dora = config.dora, .dropout = config.dropout};
  const std::vector<std::string> unknown = selection.unknown(modules, where);
  for (const Module& module : modules) {
    if (!selection.takes(module)) continue;
    if (!module.adaptable) {
      fail(ErrorKind::unsupported, "{}: {}: {} cannot have an adapter: linear layers, embed_tokens and lm_head can",
           where, targets, module.name);
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
    fail(ErrorKind::input, "{}: {}: no module of this model is named{}{}", where, targets, unknown.empty() ? "" : " ",
         fmt::join(unknown, " or "));
  }
  for (const std::string& name : unknown) {
    adapted.warnings.push_back(fmt::format("{}: {}: no module of this model is named {}", where, targets, name));
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
