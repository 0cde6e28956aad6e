#include "cli/optimizer_options.h"

#include <algorithm>
#include <vector>

#include "base/fail.h"

namespace trunkline {
namespace {

void set_optimizer_value(TrainOptions& options, const std::string& key, const OptionSource& source) {
  OptimizerOptions& optimizer = options.optimizer;
  const bool sgd = optimizer.kind == OptimizerOptions::Kind::sgd;
  const auto below_one = [&](const OptionSource& s) {
    const double value = s.number(0.0, 1.0);
    if (value == 1.0) s.refuse("1 is too much: less than 1 is needed");
    return value;
  };
  if (key == "weight_decay" && options.optimizer_name != "adam") {
    optimizer.weight_decay = source.number(0.0);
  } else if (key == "momentum" && sgd) {
    optimizer.momentum = below_one(source);
  } else if (key == "beta1" && !sgd) {
    optimizer.beta1 = below_one(source);
  } else if (key == "beta2" && !sgd) {
    optimizer.beta2 = below_one(source);
  } else if (key == "eps" && !sgd) {
    optimizer.epsilon = source.number(0.0);
  } else if (key == "bias_correction" && !sgd) {
    optimizer.bias_correction = source.boolean();
  } else if (key == "betas" && !sgd) {
    if (!source.node().IsSequence() || source.node().size() != 2) source.refuse("two numbers are expected");
    const std::vector<double> betas = source.numbers();
    if (betas[0] < 0.0 || betas[0] >= 1.0 || betas[1] < 0.0 || betas[1] >= 1.0) {
      source.refuse("both must be at least 0 and less than 1");
    }
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
  } else {
    source.refuse(fmt::format("the optimizer {} has no such option", options.optimizer_name));
  }
}

// The optimizer's own defaults.
OptimizerOptions defaults_of(const std::string& name) {
  if (name == "sgd") return {.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0};
  OptimizerOptions adam;
  if (name == "adam") adam.weight_decay = 0.0;
  return adam;
}

void set_from_config(TrainOptions& options, const OptionSource& config) {
  for (const auto& [name, values] : config.entries()) {
    if (values.is_null() || name == "muon" || name == "adafactor") continue;  // of mlx_lm, and never in use
    if (name != "adam" && name != "adamw" && name != "sgd") values.refuse("unknown optimizer");
    TrainOptions other;
    other.optimizer_name = name;
    other.optimizer = defaults_of(name);
    TrainOptions& its = name == options.optimizer_name ? options : other;
    for (const auto& [key, value] : values.entries()) {
      if (!value.is_null()) set_optimizer_value(its, key, value);
    }
  }
}

void set_from_map(ScheduleOptions& schedule, const OptionSource& source) {
  schedule.name.clear();
  for (const auto& [key, value] : source.entries()) {
    if (value.is_null()) continue;
    if (key == "name") {
      schedule.name = value.text();
    } else if (key == "arguments") {
      schedule.arguments = value.numbers();
    } else if (key == "warmup") {
      schedule.warmup = value.integer(0);
    } else if (key == "warmup_init") {
      schedule.warmup_init = value.number(0.0);
    } else {
      value.refuse("unknown key");
    }
  }
  if (schedule.name.empty()) source.refuse("name is missing");
}

}  // namespace

void set_optimizer(TrainOptions& options, const std::map<std::string, OptionSource>& sources) {
  options.optimizer = defaults_of(options.optimizer_name);
  if (const auto config = sources.find("optimizer_config"); config != sources.end()) {
    set_from_config(options, config->second);
  }
  for (const char* key : {"weight_decay", "momentum", "beta1", "beta2", "eps"}) {
    if (const auto found = sources.find(key); found != sources.end()) set_optimizer_value(options, key, found->second);
  }
}

void set_schedule(TrainOptions& options, const std::map<std::string, OptionSource>& sources) {
  ScheduleOptions& schedule = options.schedule;
  if (const auto found = sources.find("lr_schedule"); found != sources.end()) {
    const OptionSource& source = found->second;
    if (source.node().IsScalar()) {
      schedule.name = source.text();
    } else {
      set_from_map(schedule, source);
    }
    try {
      // As it will be used, for a run of any length.
      Schedule(full_schedule(options, 1));
    } catch (const Error& error) {
      source.refuse(error.what());
    }
  }
  if (const auto found = sources.find("warmup"); found != sources.end()) schedule.warmup = found->second.integer(0);
}

}  // namespace trunkline
