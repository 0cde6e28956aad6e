#include "cli/train_options.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "cli/lora_options.h"

namespace trunkline {
namespace {

// Options being read. What depends on other options waits until all are known.
struct Draft {
  TrainOptions options;
  std::map<std::string, OptionSource> later;
  bool iters_given = false;
};

struct Option {
  std::string key;
  std::string value;  // what the help calls its value; empty: a switch
  std::string help;
  std::function<void(Draft&, const OptionSource&)> set;
};

std::string flag_of(std::string key) {
  std::ranges::replace(key, '_', '-');
  return "--" + key;
}

TargetTurns target_turns(const OptionSource& source) {
  const std::string value = source.one_of({"true", "false", "all", "last"});
  if (value == "false") return TargetTurns::all_tokens;
  return value == "last" ? TargetTurns::last_assistant : TargetTurns::all_assistant;
}

std::optional<Dtype> weight_dtype(const OptionSource& source) {
  const std::optional<Dtype> dtype = dtype_from_name(source.text());
  if (dtype == Dtype::f32 || dtype == Dtype::f16 || dtype == Dtype::bf16) return dtype;
  source.refuse(fmt::format("\"{}\" is not one of float32, bfloat16, float16", source.text()));
}

Dtype f32_or_bf16(const OptionSource& source) {
  const std::optional<Dtype> dtype = dtype_from_name(source.text());
  if (dtype == Dtype::f32 || dtype == Dtype::bf16) return *dtype;
  source.refuse(fmt::format("\"{}\" is not one of float32, bfloat16", source.text()));
}

Algorithm algorithm(const OptionSource& source) {
  const std::string name = source.one_of({"auto", "mesh", "broadcast", "ring"});
  if (name == "mesh") return Algorithm::mesh;
  if (name == "broadcast") return Algorithm::broadcast;
  return name == "ring" ? Algorithm::ring : Algorithm::automatic;
}

Recompute recompute(const OptionSource& source) {
  const std::string name = source.one_of({"auto", "all", "none"});
  if (name == "all") return Recompute::all;
  return name == "none" ? Recompute::none : Recompute::automatic;
}

// A batch limit: -1 for all.
int64_t batches(const OptionSource& source) { return source.integer(-1); }

// Options that wait: optimizer_config, its single values, and the schedule.
Option later(const std::string& key, const std::string& value, const std::string& help) {
  return {key, value, help,
          [key](Draft& draft, const OptionSource& source) { draft.later.insert_or_assign(key, source); }};
}

const std::vector<Option>& all_options() {
  using S = const OptionSource&;
  static const std::vector<Option> all = {
      {"model", "DIR", "The model: a directory as Hugging Face has it",
       [](Draft& d, S s) { d.options.model = s.text(); }},
      {"data", "DIR", "train.jsonl, valid.jsonl and test.jsonl", [](Draft& d, S s) { d.options.data = s.text(); }},
      {"output", "DIR", "Where the trained model, checkpoints and metrics go",
       [](Draft& d, S s) { d.options.output = s.text(); }},
      {"resume", "", "Go on from OUTPUT's newest checkpoint", [](Draft& d, S s) { d.options.resume = s.boolean(); }},
      {"train", "", "Train; implied",
       [](Draft&, S s) {
         if (!s.boolean()) s.refuse("a run without training is not supported");
       }},
      {"test", "", "Measure the loss on test.jsonl after training",
       [](Draft& d, S s) { d.options.test = s.boolean(); }},
      {"fine_tune_type", "TYPE", "full, the default: the model is trained; lora, dora: an adapter is",
       [](Draft& d, S s) {
         const std::string type = s.one_of({"full", "lora", "dora"});
         d.options.fine_tune = type == "lora" ? FineTune::lora : type == "dora" ? FineTune::dora : FineTune::full;
       }},
      later("num_layers", "N", "Train the last N layers alone, or adapters of these, 16; -1 or all: all layers"),
      later("lora_rank", "N", "Of an adapter, 8"),
      later("lora_scale", "X", "What its product is multiplied by, 20"),
      later("lora_alpha", "X", "Instead: the scale times the rank (its square root with rslora)"),
      later("lora_dropout", "X", "Of its inputs, 0"),
      later("lora_keys", "NAMES",
            "Modules that have one, q_proj,v_proj say; by default all linear layers of the layers"),
      later("rslora", "", "Alpha is divided by the rank's square root"),
      later("adapter", "DIR", "Begin with this adapter and its settings"),
      later("resume_adapter_file", "FILE", "The same, by its adapter_model.safetensors"),
      {"mask_prompt", "", "Targets are the assistant's turns alone; --mask-prompt=last: the last one",
       [](Draft& d, S s) { d.options.rows.targets = target_turns(s); }},
      {"max_seq_length", "N", "Tokens to keep of a row, 2048",
       [](Draft& d, S s) { d.options.rows.max_seq_length = s.integer(2, 1 << 24); }},
      {"packing", "", "Pack rows into sequences of up to max_seq_length tokens; none sees anything of another",
       [](Draft& d, S s) { d.options.packing = s.boolean(); }},
      {"batch_size", "N", "Rows (with packing, sequences) of the global batch of one micro-step, 4",
       [](Draft& d, S s) { d.options.batch_size = s.integer(1, 1 << 24); }},
      {"grad_accumulation_steps", "N", "Micro-steps to an optimizer step, 1",
       [](Draft& d, S s) { d.options.grad_accumulation_steps = s.integer(1, 1 << 24); }},
      {"iters", "N", "Optimizer steps, 1000",
       [](Draft& d, S s) {
         d.options.iters = s.integer(1);
         d.iters_given = true;
       }},
      {"epochs", "N", "Passes over train.jsonl, instead of iters",
       [](Draft& d, S s) { d.options.epochs = s.integer(1, 1 << 30); }},
      {"seed", "N", "Of the order of rows, 0",
       [](Draft& d, S s) { d.options.seed = static_cast<uint64_t>(s.integer(0)); }},
      {"optimizer", "NAME", "adamw, the default; adam; sgd",
       [](Draft& d, S s) {
         d.options.optimizer_name = s.one_of({"adamw", "adam", "sgd"});
       }},
      later("weight_decay", "X", "adamw: decoupled, 0.01; sgd: added to the gradient, 0"),
      later("momentum", "X", "sgd, 0"),
      later("beta1", "X", "adam, adamw, 0.9"),
      later("beta2", "X", "adam, adamw, 0.999"),
      later("eps", "X", "adam, adamw, 1e-8"),
      {"learning_rate", "X", "1e-5", [](Draft& d, S s) { d.options.learning_rate = s.number(0.0); }},
      later("lr_schedule", "NAME", "constant, the default; linear or cosine: down to 0 at the run's end"),
      later("warmup", "N", "Steps over which the learning rate rises first, 0"),
      {"max_grad_norm", "X", "Clip gradients by their global norm; 0, the default: no clipping",
       [](Draft& d, S s) { d.options.max_grad_norm = s.number(0.0); }},
      {"skip_loss_z", "X",
       "Skip the update of a step whose loss is X standard deviations above the last ones; 0: never",
       [](Draft& d, S s) { d.options.skip_loss_z = s.number(0.0); }},
      {"skip_grad_z", "X", "The same for the norm of its gradients",
       [](Draft& d, S s) { d.options.skip_grad_z = s.number(0.0); }},
      {"skip_window", "N", "Steps that a step is compared with for that, 128",
       [](Draft& d, S s) { d.options.skip_window = s.integer(2, 1 << 20); }},
      {"sync", "WHEN", "Sums over ranks: overlap, the default, while the backward pass goes on; after it",
       [](Draft& d, S s) {
         d.options.sync = s.one_of({"overlap", "after"}) == "after" ? Sync::after : Sync::overlap;
       }},
      {"dtype", "DTYPE",
       "What the model is computed in: float32, the default, or bfloat16 with f32 masters of the weights",
       [](Draft& d, S s) { d.options.dtype = f32_or_bf16(s); }},
      {"pure_bf16", "", "With --dtype bfloat16: no masters; updates smaller than a weight's last digit are lost",
       [](Draft& d, S s) { d.options.pure_bf16 = s.boolean(); }},
      {"wire_dtype", "DTYPE", "As what gradients travel between ranks: float32, the default, or bfloat16",
       [](Draft& d, S s) { d.options.wire_dtype = f32_or_bf16(s); }},
      {"shard_optimizer", "",
       "Each rank updates a part of every tensor, and has the optimizer's state of that part alone",
       [](Draft& d, S s) { d.options.shard_optimizer = s.boolean(); }},
      {"hold_gradients", "", "Update once all gradients have been checked, rather than layer by layer",
       [](Draft& d, S s) { d.options.hold_gradients = s.boolean(); }},
      {"recompute", "WHAT", "In the backward pass: auto, the default, what memory does not hold; all; none",
       [](Draft& d, S s) { d.options.recompute = recompute(s); }},
      {"grad_checkpoint", "", "The same as --recompute all",
       [](Draft& d, S s) {
         if (s.boolean()) d.options.recompute = Recompute::all;
       }},
      {"memory_limit", "GIB", "What a step of this rank may take; by default from the device",
       [](Draft& d, S s) { d.options.memory_limit = s.number(0.0, 1e6); }},
      {"query_block", "N", "Queries of a row whose attention scores exist at once; 0, the default: chosen",
       [](Draft& d, S s) { d.options.query_block = s.integer(0, 1 << 24); }},
      {"token_block", "N", "Tokens of a row in a layer's products at once; 0: chosen",
       [](Draft& d, S s) { d.options.token_block = s.integer(0, 1 << 24); }},
      {"loss_block", "N", "Targets whose logits exist at once; 0: chosen",
       [](Draft& d, S s) { d.options.loss_block = s.integer(0, 1 << 24); }},
      {"vocab_slice", "N", "Rows of the head whose gradient exists at once; 0: chosen",
       [](Draft& d, S s) { d.options.vocab_slice = s.integer(0, 1 << 24); }},
      {"whole_graph", "", "Compute a micro-batch as one graph: the reference for the layer-wise step",
       [](Draft& d, S s) { d.options.whole_graph = s.boolean(); }},
      {"busy_wait", "", "Spin while waiting for sums", [](Draft& d, S s) { d.options.busy_wait = s.boolean(); }},
      {"trace", "FILE", "Write a timeline of all steps there, for chrome://tracing or Perfetto",
       [](Draft& d, S s) {
         d.options.trace = s.text();
         if (d.options.trace.empty()) s.refuse("the name of a file is expected");
       }},
      {"steps_per_report", "N", "Steps between progress lines, 10",
       [](Draft& d, S s) { d.options.steps_per_report = s.integer(1); }},
      {"steps_per_eval", "N", "Steps between validations, 200",
       [](Draft& d, S s) { d.options.steps_per_eval = s.integer(1); }},
      {"val_batches", "N", "Batches of valid.jsonl to validate on, 25; -1: all; 0: none",
       [](Draft& d, S s) { d.options.val_batches = batches(s); }},
      {"early_stopping_patience", "N", "End after N validations in a row without a better loss; 0, the default: do not",
       [](Draft& d, S s) { d.options.early_stopping_patience = s.integer(0); }},
      {"early_stopping_threshold", "X", "By how much a validation's loss must be lower to be better, 0",
       [](Draft& d, S s) { d.options.early_stopping_threshold = s.number(0.0); }},
      {"keep_best", "", "Keep a checkpoint of the best validation too",
       [](Draft& d, S s) { d.options.keep_best = s.boolean(); }},
      {"load_best_model_at_end", "", "Save the model of the best validation; implies keep_best",
       [](Draft& d, S s) { d.options.load_best_model_at_end = s.boolean(); }},
      {"test_batches", "N", "Batches of test.jsonl to test on, 500; -1: all",
       [](Draft& d, S s) { d.options.test_batches = batches(s); }},
      {"save_every", "N", "Steps between checkpoints, 100", [](Draft& d, S s) { d.options.save_every = s.integer(1); }},
      {"keep", "N", "Newest checkpoints to keep, 2", [](Draft& d, S s) { d.options.keep = s.integer(1); }},
      {"save_dtype", "DTYPE", "Of the final model: float32, bfloat16 or float16; by default the source's",
       [](Draft& d, S s) { d.options.save_dtype = weight_dtype(s); }},
      {"check_every", "N", "Steps between comparisons of the ranks' weights, 100",
       [](Draft& d, S s) { d.options.check_every = s.integer(1); }},
      {"text_feature", "NAME", "Field names in the rows: text",
       [](Draft& d, S s) { d.options.rows.text_feature = s.text(); }},
      {"prompt_feature", "NAME", "prompt", [](Draft& d, S s) { d.options.rows.prompt_feature = s.text(); }},
      {"completion_feature", "NAME", "completion", [](Draft& d, S s) { d.options.rows.completion_feature = s.text(); }},
      {"chat_feature", "NAME", "messages", [](Draft& d, S s) { d.options.rows.chat_feature = s.text(); }},
      {"timeout", "SECONDS", "How long a rank may make no progress, 60",
       [](Draft& d, S s) { d.options.timeout = s.number(0.001, 604800); }},
      {"lanes", "N", "Connections to each other rank", [](Draft& d, S s) { d.options.lanes = s.integer(1, 10); }},
      {"algorithm", "NAME", "Of the sums over ranks: auto, mesh, broadcast, ring",
       [](Draft& d, S s) { d.options.algorithm = algorithm(s); }},
  };
  return all;
}

// What mlx_lm.lora has and this does not, and why.
const std::map<std::string, std::string>& without_counterpart() {
  static const std::map<std::string, std::string> all = {
      {"adapter_path", "an adapter is written to output"},
      {"clear_cache_threshold", "the cache is bounded always"},
      {"report_to", "not supported; metrics are in OUTPUT/metrics.jsonl"},
      {"project_name", "not supported; metrics are in OUTPUT/metrics.jsonl"},
      {"trust_remote_code", "no code of a model is ever run"},
      {"hf_dataset", "data are local files: data names their directory"},
  };
  return all;
}

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

void set_optimizer(Draft& draft) {
  TrainOptions& options = draft.options;
  if (options.optimizer_name == "sgd") {
    options.optimizer = {.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0};
  } else if (options.optimizer_name == "adam") {
    options.optimizer.weight_decay = 0.0;
  }
  if (const auto config = draft.later.find("optimizer_config"); config != draft.later.end()) {
    for (const auto& [name, values] : config->second.entries()) {
      static const std::set<std::string> known = {"adam", "adamw", "sgd", "muon", "adafactor"};
      if (!known.contains(name)) values.refuse("unknown optimizer");
      if (name != options.optimizer_name || values.is_null()) continue;
      for (const auto& [key, value] : values.entries()) set_optimizer_value(options, key, value);
    }
  }
  for (const char* key : {"weight_decay", "momentum", "beta1", "beta2", "eps"}) {
    if (const auto found = draft.later.find(key); found != draft.later.end()) {
      set_optimizer_value(options, key, found->second);
    }
  }
}

void set_schedule(Draft& draft) {
  ScheduleOptions& schedule = draft.options.schedule;
  if (const auto found = draft.later.find("lr_schedule"); found != draft.later.end()) {
    const OptionSource& source = found->second;
    if (source.node().IsScalar()) {
      schedule.name = source.text();
    } else {
      schedule.name.clear();
      for (const auto& [key, value] : source.entries()) {
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
    try {
      // As it will be used, for a run of any length.
      Schedule(full_schedule(draft.options, 1));
    } catch (const Error& error) {
      source.refuse(error.what());
    }
  }
  if (const auto found = draft.later.find("warmup"); found != draft.later.end()) {
    schedule.warmup = found->second.integer(0);
  }
}

void set_from_yaml(Draft& draft, const std::string& file) {
  YAML::Node root;
  try {
    root = YAML::LoadFile(file);
  } catch (const YAML::BadFile&) {
    fail(ErrorKind::input, "-c: cannot read {}", file);
  } catch (const YAML::Exception& error) {
    fail(ErrorKind::input, "{}:{}: {}", file, error.mark.line + 1, error.msg);
  }
  if (root.IsNull()) return;
  if (!root.IsMap()) fail(ErrorKind::input, "{}: keys with values are expected", file);
  std::set<std::string> seen;
  for (const auto& entry : root) {
    const std::string key = entry.first.Scalar();
    const OptionSource source = OptionSource::from_yaml(file, key, entry.second);
    const auto refuse = [&](const std::string& why) {
      fail(ErrorKind::input, "{}:{}: {}: {}", file, entry.first.Mark().line + 1, key, why);
    };
    if (!seen.insert(key).second) refuse("the key is there twice");
    if (key == "optimizer_config" || key == "lora_parameters") {
      if (!source.is_null()) draft.later.insert_or_assign(key, source);
      continue;
    }
    if (const auto refused = without_counterpart().find(key); refused != without_counterpart().end()) {
      const bool off = source.is_null() || (source.node().IsScalar() && source.text() == "false");
      if (!off) refuse(refused->second);
      continue;
    }
    const auto option = std::ranges::find(all_options(), key, &Option::key);
    if (option == all_options().end()) refuse("unknown key");
    if (!source.is_null()) option->set(draft, source);  // null: the default
  }
}

// What the whole graph has no use for, and would leave out without a word. A file may have the defaults, as the
// settings that a run writes do; `flagged`: is it on the command line?
void refuse_layer_wise(const TrainOptions& o, const std::function<bool(const char*)>& flagged) {
  const struct {
    const char* key;
    bool set;
  } all[] = {{"query_block", o.query_block != 0},
             {"token_block", o.token_block != 0},
             {"loss_block", o.loss_block != 0},
             {"vocab_slice", o.vocab_slice != 0},
             {"grad_checkpoint", false},
             {"recompute", o.recompute != Recompute::automatic},
             {"memory_limit", o.memory_limit != 0.0},
             {"wire_dtype", o.wire_dtype != Dtype::f32},
             {"shard_optimizer", o.shard_optimizer}};
  const auto refuse = [](const std::string& key, const char* with) {
    fail(ErrorKind::input, "{}{} goes with the layer-wise step, not with --whole-graph", flag_of(key), with);
  };
  for (const auto& [key, set] : all) {
    if (set || flagged(key)) refuse(key, "");
  }
  if (o.sync == Sync::overlap && flagged("sync")) refuse("sync", " overlap");
}

}  // namespace

TrainOptionParser::TrainOptionParser(CLI::App& command) {
  command.add_option("-c,--config", config_, "YAML with any of these options, under the same names with _ for -")
      ->type_name("FILE");
  for (const Option& option : all_options()) {
    auto given = std::make_unique<Given>();
    const std::string names = option.key == "max_grad_norm" ? flag_of(option.key) + ",--clip" : flag_of(option.key);
    if (option.value.empty()) {
      given->option = command.add_flag(names, given->text, option.help);
    } else {
      given->option = command.add_option(names, given->text, option.help)->type_name(option.value);
    }
    given->option->take_last();  // as argparse has it: a flag at the end of a command overrides
    flags_.emplace(option.key, std::move(given));
  }
  for (const auto& [key, why] : without_counterpart()) {
    auto given = std::make_unique<Given>();
    given->option = command.add_option(flag_of(key), given->text)->expected(0, 1)->group("");
    flags_.emplace(key, std::move(given));
  }
}

TrainOptions TrainOptionParser::options() const {
  for (const auto& [key, why] : without_counterpart()) {
    if (flags_.at(key)->option->count() > 0) fail(ErrorKind::input, "{}: {}", flag_of(key), why);
  }
  Draft draft;
  if (!config_.empty()) set_from_yaml(draft, config_);
  const bool yaml_epochs = draft.options.epochs > 0, yaml_iters = draft.iters_given;
  draft.iters_given = false;
  for (const Option& option : all_options()) {
    const Given& given = *flags_.at(option.key);
    if (given.option->count() == 0) continue;
    // A flag of the pair iters and epochs takes the place of the other in the file.
    if (option.key == "iters") draft.options.epochs = 0;
    option.set(draft, OptionSource::from_flag(flag_of(option.key), given.text));
  }
  const bool flag_epochs = flags_.at("epochs")->option->count() > 0;
  if ((flag_epochs && draft.iters_given) || (!flag_epochs && !draft.iters_given && yaml_epochs && yaml_iters)) {
    fail(ErrorKind::input, "iters and epochs are both given: one of them says how long to train");
  }
  const TrainOptions& options = draft.options;
  for (const auto& [key, path] :
       {std::pair("model", options.model), {"data", options.data}, {"output", options.output}}) {
    if (path.empty()) fail(ErrorKind::input, "{} is missing (or {} in the file given with -c)", flag_of(key), key);
  }
  if (options.whole_graph)
    refuse_layer_wise(options, [&](const char* key) { return flags_.at(key)->option->count() > 0; });
  if (options.pure_bf16 && options.dtype != Dtype::bf16) {
    fail(ErrorKind::input, "--pure-bf16 goes with --dtype bfloat16");
  }
  if (options.pure_bf16 && options.shard_optimizer) {
    fail(ErrorKind::input, "--shard-optimizer keeps f32 masters: leave out --pure-bf16");
  }
  set_fine_tuning(draft.options, draft.later);
  set_optimizer(draft);
  set_schedule(draft);
  return draft.options;
}

}  // namespace trunkline
