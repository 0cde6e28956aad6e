#include "train/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace trunkline {
namespace {

using Scope = Setting::Scope;

// JSON is YAML: strings quoted, numbers so that they read back as the same double.
std::string text(const nlohmann::ordered_json& value) { return value.dump(); }

// From wherever it is read again, the same.
std::string place(const std::filesystem::path& path) {
  return text(path.empty() ? path.string() : std::filesystem::absolute(path).lexically_normal().string());
}

std::string mask_prompt(TargetTurns targets) {
  switch (targets) {
    case TargetTurns::all_tokens: return "false";
    case TargetTurns::all_assistant: return text("all");
    case TargetTurns::last_assistant: return text("last");
  }
  return "false";
}

std::string optimizer_config(const TrainOptions& options) {
  const OptimizerOptions& o = options.optimizer;
  nlohmann::ordered_json config;
  if (o.kind == OptimizerOptions::Kind::sgd) {
    config = {{"momentum", o.momentum}, {"weight_decay", o.weight_decay}};
  } else {
    config = {{"betas", {o.beta1, o.beta2}}, {"eps", o.epsilon}, {"bias_correction", o.bias_correction}};
    if (options.optimizer_name == "adamw") config["weight_decay"] = o.weight_decay;
  }
  return text({{options.optimizer_name, config}});
}

std::string schedule_text(const ScheduleOptions& schedule) {
  nlohmann::ordered_json value{{"name", schedule.name}};
  if (!schedule.arguments.empty()) value["arguments"] = schedule.arguments;
  value["warmup"] = schedule.warmup;
  value["warmup_init"] = schedule.warmup_init;
  return text(value);
}

std::string fine_tune_name(FineTune type) {
  switch (type) {
    case FineTune::full: return "full";
    case FineTune::lora: return "lora";
    case FineTune::dora: return "dora";
  }
  return "full";
}

std::string lora_text(const LoraOptions& lora) {
  nlohmann::ordered_json value{{"rank", lora.rank}};
  if (lora.alpha) {
    value["alpha"] = *lora.alpha;
  } else {
    value["scale"] = lora.scale.value_or(kDefaultLoraScale);
  }
  value["dropout"] = lora.dropout;
  value["rslora"] = lora.rslora;
  if (!lora.keys.empty()) value["keys"] = lora.keys;
  return text(value);
}

// What is trained.
std::vector<Setting> fine_tune_settings(const TrainOptions& o) {
  std::vector<Setting> settings = {{"fine_tune_type", text(fine_tune_name(o.fine_tune)), Scope::run}};
  const Setting layers = {"num_layers", o.num_layers ? text(*o.num_layers) : "null", Scope::run};
  if (o.fine_tune == FineTune::full) {
    if (o.num_layers) settings.push_back(layers);
    return settings;
  }
  if (!o.lora.start.empty()) {
    settings.push_back({"adapter", place(o.lora.start), Scope::place});
    return settings;
  }
  settings.push_back(layers);
  settings.push_back({"lora_parameters", lora_text(o.lora), Scope::run});
  return settings;
}

std::string algorithm_name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::mesh: return "mesh";
    case Algorithm::broadcast: return "broadcast";
    case Algorithm::ring: return "ring";
  }
  return "auto";
}

std::string recompute_name(Recompute recompute) {
  switch (recompute) {
    case Recompute::automatic: return "auto";
    case Recompute::all: return "all";
    case Recompute::none: return "none";
  }
  return "auto";
}

}  // namespace

std::vector<Setting> settings_of(const TrainOptions& o) {
  // What the whole graph has no use for is not said with it.
  const auto layer_wise = [&](const std::string& value) { return o.whole_graph ? "null" : value; };
  std::vector<Setting> settings = {
      {"model", place(o.model), Scope::place},
      {"data", place(o.data), Scope::place},
      {"output", place(o.output), Scope::place},
      {"test", text(o.test), Scope::pace},
      {"optimizer", text(o.optimizer_name), Scope::run},
      {"optimizer_config", optimizer_config(o), Scope::run},
      {"learning_rate", text(o.learning_rate), Scope::run},
      {"lr_schedule", schedule_text(o.schedule), Scope::run},
      {"max_grad_norm", text(o.max_grad_norm), Scope::run},
      {"skip_loss_z", text(o.skip_loss_z), Scope::run},
      {"skip_grad_z", text(o.skip_grad_z), Scope::run},
      {"skip_window", text(o.skip_window), Scope::run},
      {"batch_size", text(o.batch_size), Scope::run},
      {"grad_accumulation_steps", text(o.grad_accumulation_steps), Scope::run},
      o.epochs > 0 ? Setting{"epochs", text(o.epochs), Scope::pace} : Setting{"iters", text(o.iters), Scope::pace},
      {"seed", text(o.seed), Scope::run},
      {"max_seq_length", text(o.rows.max_seq_length), Scope::run},
      {"packing", text(o.packing), Scope::run},
      {"mask_prompt", mask_prompt(o.rows.targets), Scope::run},
      {"text_feature", text(o.rows.text_feature), Scope::run},
      {"prompt_feature", text(o.rows.prompt_feature), Scope::run},
      {"completion_feature", text(o.rows.completion_feature), Scope::run},
      {"chat_feature", text(o.rows.chat_feature), Scope::run},
      {"val_batches", text(o.val_batches), Scope::pace},
      {"test_batches", text(o.test_batches), Scope::pace},
      {"steps_per_report", text(o.steps_per_report), Scope::pace},
      {"steps_per_eval", text(o.steps_per_eval), Scope::pace},
      {"early_stopping_patience", text(o.early_stopping_patience), Scope::pace},
      {"early_stopping_threshold", text(o.early_stopping_threshold), Scope::pace},
      {"keep_best", text(o.keep_best), Scope::pace},
      {"load_best_model_at_end", text(o.load_best_model_at_end), Scope::pace},
      {"save_every", text(o.save_every), Scope::pace},
      {"keep", text(o.keep), Scope::pace},
      {"check_every", text(o.check_every), Scope::pace},
      {"save_dtype", o.save_dtype ? text(name_of(*o.save_dtype)) : "null", Scope::pace},
      {"whole_graph", text(o.whole_graph), Scope::run},
      {"query_block", layer_wise(text(o.query_block)), Scope::run},
      {"token_block", layer_wise(text(o.token_block)), Scope::run},
      {"loss_block", layer_wise(text(o.loss_block)), Scope::run},
      {"vocab_slice", layer_wise(text(o.vocab_slice)), Scope::run},
      {"recompute", layer_wise(text(recompute_name(o.recompute))), Scope::pace},
      {"sync", o.sync == Sync::overlap ? layer_wise(text("overlap")) : text("after"), Scope::pace},
      {"dtype", text(name_of(o.dtype)), Scope::run},
      {"pure_bf16", text(o.pure_bf16), Scope::run},
      {"wire_dtype", layer_wise(text(name_of(o.wire_dtype))), Scope::run},
      {"shard_optimizer", text(o.shard_optimizer), Scope::pace},
      {"hold_gradients", text(o.hold_gradients), Scope::pace},
      {"busy_wait", text(o.busy_wait), Scope::place},
      {"memory_limit", layer_wise(text(o.memory_limit)), Scope::place},
      {"trace", o.trace.empty() ? "null" : place(o.trace), Scope::place},
      {"timeout", o.timeout ? text(*o.timeout) : "null", Scope::place},
      {"lanes", o.lanes ? text(*o.lanes) : "null", Scope::place},
      {"algorithm", o.algorithm ? text(algorithm_name(*o.algorithm)) : "null", Scope::pace},
  };
  const std::vector<Setting> trained = fine_tune_settings(o);
  settings.insert(std::ranges::find(settings, "optimizer", &Setting::key), trained.begin(), trained.end());
  return settings;
}

ScheduleOptions full_schedule(const TrainOptions& options, int64_t total_steps) {
  ScheduleOptions schedule = options.schedule;
  if (!schedule.arguments.empty()) return schedule;
  schedule.arguments = {options.learning_rate};
  // The decay ends with the last step.
  const int64_t warmup = schedule.warmup > 0 ? schedule.warmup + 1 : 0;
  const auto decay = static_cast<double>(std::max<int64_t>(1, total_steps - 1 - warmup));
  if (schedule.name == "linear" || schedule.name == "linear_schedule") {
    schedule.arguments.insert(schedule.arguments.end(), {0.0, decay});
  } else if (schedule.name == "cosine" || schedule.name == "cosine_decay") {
    schedule.arguments.push_back(decay);
  }
  return schedule;
}

}  // namespace trunkline
