#include "cli/train_options.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "base/fail.h"
#include "cli/lora_options.h"
#include "cli/optimizer_options.h"
#include "cli/yaml_file.h"

namespace trunkline {
namespace {

// What is given, by key.
using Given = std::map<std::string, OptionSource>;

struct Option {
  std::string key;
  std::string value;  // what the help calls its value; empty: a switch
  std::string help;
  std::function<void(TrainOptions&, const OptionSource&)> set;  // none: it depends on others and waits for them
  const char* alias = nullptr;
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

// Adapters, optimizer_config and its single values, and the schedule: lora_options.h, optimizer_options.h.
Option later(const std::string& key, const std::string& value, const std::string& help) {
  return {key, value, help, nullptr};
}

const std::vector<Option>& all_options() {
  using S = const OptionSource&;
  static const std::vector<Option> all = {
      {"model", "DIR", "The model: a directory as Hugging Face has it",
       [](TrainOptions& o, S s) { o.model = s.text(); }},
      {"data", "DIR", "train.jsonl, valid.jsonl and test.jsonl", [](TrainOptions& o, S s) { o.data = s.text(); }},
      {"output", "DIR", "Where the trained model, checkpoints and metrics go",
       [](TrainOptions& o, S s) { o.output = s.text(); }},
      {"resume", "", "Go on from OUTPUT's newest checkpoint", [](TrainOptions& o, S s) { o.resume = s.boolean(); }},
      {"train", "", "Train; implied",
       [](TrainOptions&, S s) {
         if (!s.boolean()) s.refuse("a run without training is not supported");
       }},
      {"test", "", "Measure the loss on test.jsonl after training", [](TrainOptions& o, S s) { o.test = s.boolean(); }},
      {"fine_tune_type", "TYPE", "full, the default: the model is trained; lora, dora: an adapter is",
       [](TrainOptions& o, S s) {
         const std::string type = s.one_of({"full", "lora", "dora"});
         o.fine_tune = type == "lora" ? FineTune::lora : type == "dora" ? FineTune::dora : FineTune::full;
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
       [](TrainOptions& o, S s) { o.rows.targets = target_turns(s); }},
      {"max_seq_length", "N", "Tokens to keep of a row, 2048",
       [](TrainOptions& o, S s) { o.rows.max_seq_length = s.integer(2, 1 << 24); }},
      {"packing", "", "Pack rows into sequences of up to max_seq_length tokens; none sees anything of another",
       [](TrainOptions& o, S s) { o.packing = s.boolean(); }},
      {"batch_size", "N", "Rows (with packing, sequences) of the global batch of one micro-step, 4",
       [](TrainOptions& o, S s) { o.batch_size = s.integer(1, 1 << 24); }},
      {"grad_accumulation_steps", "N", "Micro-steps to an optimizer step, 1",
       [](TrainOptions& o, S s) { o.grad_accumulation_steps = s.integer(1, 1 << 24); }},
      {"iters", "N", "Optimizer steps, 1000", [](TrainOptions& o, S s) { o.iters = s.integer(1); }},
      {"epochs", "N", "Passes over train.jsonl, instead of iters",
       [](TrainOptions& o, S s) { o.epochs = s.integer(1, 1 << 30); }},
      {"seed", "N", "Of the order of rows, 0",
       [](TrainOptions& o, S s) { o.seed = static_cast<uint64_t>(s.integer(0)); }},
      {"optimizer", "NAME", "adamw, the default; adam; sgd",
       [](TrainOptions& o, S s) {
         o.optimizer_name = s.one_of({"adamw", "adam", "sgd"});
       }},
      later("weight_decay", "X", "adamw: decoupled, 0.01; sgd: added to the gradient, 0"),
      later("momentum", "X", "sgd, 0"),
      later("beta1", "X", "adam, adamw, 0.9"),
      later("beta2", "X", "adam, adamw, 0.999"),
      later("eps", "X", "adam, adamw, 1e-8"),
      {"learning_rate", "X", "1e-5", [](TrainOptions& o, S s) { o.learning_rate = s.number(0.0); }},
      later("lr_schedule", "NAME", "constant, the default; linear or cosine: down to 0 at the run's end"),
      later("warmup", "N", "Steps over which the learning rate rises first, 0"),
      {"max_grad_norm", "X", "Clip gradients by their global norm; 0, the default: no clipping",
       [](TrainOptions& o, S s) { o.max_grad_norm = s.number(0.0); }, "clip"},
      {"skip_loss_z", "X",
       "Skip the update of a step whose loss is X standard deviations above the last ones; 0: never",
       [](TrainOptions& o, S s) { o.skip_loss_z = s.number(0.0); }},
      {"skip_grad_z", "X", "The same for the norm of its gradients",
       [](TrainOptions& o, S s) { o.skip_grad_z = s.number(0.0); }},
      {"skip_window", "N", "Steps that a step is compared with for that, 128",
       [](TrainOptions& o, S s) { o.skip_window = s.integer(2, 1 << 20); }},
      {"sync", "WHEN", "Sums over ranks: overlap, the default, while the backward pass goes on; after it",
       [](TrainOptions& o, S s) {
         o.sync = s.one_of({"overlap", "after"}) == "after" ? Sync::after : Sync::overlap;
       }},
      {"dtype", "DTYPE",
       "What the model is computed in: float32, the default, or bfloat16 with f32 masters of the weights",
       [](TrainOptions& o, S s) { o.dtype = f32_or_bf16(s); }},
      {"pure_bf16", "", "With --dtype bfloat16: no masters; updates smaller than a weight's last digit are lost",
       [](TrainOptions& o, S s) { o.pure_bf16 = s.boolean(); }},
      {"wire_dtype", "DTYPE", "As what gradients travel between ranks: float32, the default, or bfloat16",
       [](TrainOptions& o, S s) { o.wire_dtype = f32_or_bf16(s); }},
      {"shard_optimizer", "",
       "Each rank updates a part of every tensor, and has the optimizer's state of that part alone",
       [](TrainOptions& o, S s) { o.shard_optimizer = s.boolean(); }},
      {"hold_gradients", "", "Update once all gradients have been checked, rather than layer by layer",
       [](TrainOptions& o, S s) { o.hold_gradients = s.boolean(); }},
      {"recompute", "WHAT", "In the backward pass: auto, the default, what memory does not hold; all; none",
       [](TrainOptions& o, S s) { o.recompute = recompute(s); }},
      {"grad_checkpoint", "", "The same as --recompute all",
       [](TrainOptions& o, S s) {
         if (s.boolean()) o.recompute = Recompute::all;
       }},
      {"memory_limit", "GIB", "What a step of this rank may take; by default from the device",
       [](TrainOptions& o, S s) { o.memory_limit = s.number(0.0, 1e6); }},
      {"query_block", "N", "Queries of a row whose attention scores exist at once; 0, the default: chosen",
       [](TrainOptions& o, S s) { o.query_block = s.integer(0, 1 << 24); }},
      {"token_block", "N", "Tokens of a row in a layer's products at once; 0: chosen",
       [](TrainOptions& o, S s) { o.token_block = s.integer(0, 1 << 24); }},
      {"loss_block", "N", "Targets whose logits exist at once; 0: chosen",
       [](TrainOptions& o, S s) { o.loss_block = s.integer(0, 1 << 24); }},
      {"vocab_slice", "N", "Rows of the head whose gradient exists at once; 0: chosen",
       [](TrainOptions& o, S s) { o.vocab_slice = s.integer(0, 1 << 24); }},
      {"whole_graph", "", "Compute a micro-batch as one graph: the reference for the layer-wise step",
       [](TrainOptions& o, S s) { o.whole_graph = s.boolean(); }},
      {"busy_wait", "", "Spin while waiting for sums", [](TrainOptions& o, S s) { o.busy_wait = s.boolean(); }},
      {"trace", "FILE", "Write a timeline of all steps there, for chrome://tracing or Perfetto",
       [](TrainOptions& o, S s) {
         o.trace = s.text();
         if (o.trace.empty()) s.refuse("the name of a file is expected");
       }},
      {"steps_per_report", "N", "Steps between progress lines, 10",
       [](TrainOptions& o, S s) { o.steps_per_report = s.integer(1); }},
      {"steps_per_eval", "N", "Steps between validations, 200",
       [](TrainOptions& o, S s) { o.steps_per_eval = s.integer(1); }},
      {"val_batches", "N", "Batches of valid.jsonl to validate on, 25; -1: all; 0: none",
       [](TrainOptions& o, S s) { o.val_batches = batches(s); }},
      {"early_stopping_patience", "N", "End after N validations in a row without a better loss; 0, the default: do not",
       [](TrainOptions& o, S s) { o.early_stopping_patience = s.integer(0); }},
      {"early_stopping_threshold", "X", "By how much a validation's loss must be lower to be better, 0",
       [](TrainOptions& o, S s) { o.early_stopping_threshold = s.number(0.0); }},
      {"keep_best", "", "Keep a checkpoint of the best validation too",
       [](TrainOptions& o, S s) { o.keep_best = s.boolean(); }},
      {"load_best_model_at_end", "", "Save the model of the best validation; implies keep_best",
       [](TrainOptions& o, S s) { o.load_best_model_at_end = s.boolean(); }},
      {"test_batches", "N", "Batches of test.jsonl to test on, 500; -1: all",
       [](TrainOptions& o, S s) { o.test_batches = batches(s); }},
      {"save_every", "N", "Steps between checkpoints, 100", [](TrainOptions& o, S s) { o.save_every = s.integer(1); }},
      {"keep", "N", "Newest checkpoints to keep, 2", [](TrainOptions& o, S s) { o.keep = s.integer(1); }},
      {"save_dtype", "DTYPE", "Of the final model: float32, bfloat16 or float16; by default the source's",
       [](TrainOptions& o, S s) { o.save_dtype = weight_dtype(s); }},
      {"check_every", "N", "Steps between comparisons of the ranks' weights, 100",
       [](TrainOptions& o, S s) { o.check_every = s.integer(1); }},
      {"text_feature", "NAME", "Field names in the rows: text",
       [](TrainOptions& o, S s) { o.rows.text_feature = s.text(); }},
      {"prompt_feature", "NAME", "prompt", [](TrainOptions& o, S s) { o.rows.prompt_feature = s.text(); }},
      {"completion_feature", "NAME", "completion", [](TrainOptions& o, S s) { o.rows.completion_feature = s.text(); }},
      {"chat_feature", "NAME", "messages", [](TrainOptions& o, S s) { o.rows.chat_feature = s.text(); }},
      {"timeout", "SECONDS", "How long a rank may make no progress, 60",
       [](TrainOptions& o, S s) { o.timeout = s.number(0.001, 604800); }},
      {"lanes", "N", "Connections to each other rank", [](TrainOptions& o, S s) { o.lanes = s.integer(1, 10); }},
      {"algorithm", "NAME", "Of the sums over ranks: auto, mesh, broadcast, ring",
       [](TrainOptions& o, S s) { o.algorithm = algorithm(s); }},
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

const Option* find_option(const std::string& key) {
  const auto found = std::ranges::find_if(
      all_options(), [&](const Option& it) { return it.key == key || (it.alias != nullptr && it.alias == key); });
  return found == all_options().end() ? nullptr : &*found;
}

// Options of the file alone, since their values are maps.
bool is_map(const std::string& key) { return key == "optimizer_config" || key == "lora_parameters"; }

Given given_in(const std::string& file) {
  Given given;
  const YAML::Node document = read_yaml(file);
  if (document.IsNull()) return given;
  for (const auto& [name, source] : OptionSource::from_yaml(file, document).entries()) {
    if (const auto refused = without_counterpart().find(name); refused != without_counterpart().end()) {
      if (!source.is_off()) source.refuse(refused->second);
      continue;
    }
    const Option* const option = find_option(name);
    if (option == nullptr && !is_map(name)) source.refuse("unknown key");
    if (source.is_null()) continue;  // the default
    const std::string& key = option == nullptr ? name : option->key;
    const auto [first, is_first] = given.emplace(key, source);
    if (!is_first) source.refuse(fmt::format("{} is given too, another name of the same", first->second.name()));
  }
  return given;
}

bool is_asked_for(const Given& given, const std::string& key) {
  const auto found = given.find(key);
  return found != given.end() && !found->second.is_off();
}

// Two ways to say one thing: a file, or a command line, has one of them.
constexpr std::pair<const char*, const char*> kEither[] = {{"iters", "epochs"},
                                                           {"recompute", "grad_checkpoint"},
                                                           {"lora_scale", "lora_alpha"},
                                                           {"adapter", "resume_adapter_file"}};

void refuse_both(const Given& given) {
  for (const auto& [one, other] : kEither) {
    if (!is_asked_for(given, one) || !is_asked_for(given, other)) continue;
    given.at(other).refuse(fmt::format("{} and {} are both given: one of them says it", one, other));
  }
}

// The command line's over the file's.
Given over(Given line, Given file) {
  for (const auto& [one, other] : kEither) {
    if (line.contains(one) || line.contains(other)) {
      file.erase(one);
      file.erase(other);
    }
  }
  line.merge(file);
  return line;
}

TrainOptions values_of(const Given& given) {
  TrainOptions options;
  for (const Option& option : all_options()) {
    const auto found = given.find(option.key);
    if (option.set && found != given.end()) option.set(options, found->second);
  }
  return options;
}

// What the whole graph has no use for, and would leave out without a word.
void refuse_layer_wise(const Given& given) {
  for (const char* key : {"query_block", "token_block", "loss_block", "vocab_slice", "grad_checkpoint", "recompute",
                          "memory_limit", "wire_dtype", "shard_optimizer", "sync"}) {
    if (!is_asked_for(given, key)) continue;
    const OptionSource& source = given.at(key);
    if (key == std::string("sync") && source.text() == "after") continue;
    source.refuse("goes with the layer-wise step, not with --whole-graph");
  }
}

// Options that leave each other nothing to do.
void refuse_contradictions(const TrainOptions& options, const Given& given) {
  if (options.whole_graph) refuse_layer_wise(given);
  if (options.pure_bf16 && options.dtype != Dtype::bf16) {
    given.at("pure_bf16").refuse("goes with --dtype bfloat16");
  }
  if (options.pure_bf16 && options.shard_optimizer) {
    given.at("shard_optimizer").refuse("keeps f32 masters: leave out --pure-bf16");
  }
  if (options.test && options.test_batches == 0) {
    given.at("test_batches").refuse("0 leaves nothing to measure with --test");
  }
  for (const char* key : {"early_stopping_patience", "keep_best", "load_best_model_at_end"}) {
    const bool needs =
        key == std::string("early_stopping_patience") ? options.early_stopping_patience > 0 : is_asked_for(given, key);
    if (needs && options.val_batches == 0) {
      given.at("val_batches").refuse(fmt::format("0 is no validation, and {} needs one", flag_of(key)));
    }
  }
}

}  // namespace

TrainOptionParser::TrainOptionParser(CLI::App& command) {
  command.add_option("-c,--config", config_, "YAML with any of these options, under the same names with _ for -")
      ->type_name("FILE");
  for (const Option& option : all_options()) {
    auto given = std::make_unique<Flag>();
    const std::string names = flag_of(option.key) + (option.alias == nullptr ? "" : "," + flag_of(option.alias));
    if (option.value.empty()) {
      given->option = command.add_flag(names, given->text, option.help);
    } else {
      given->option = command.add_option(names, given->text, option.help)->type_name(option.value);
    }
    given->option->take_last();  // as argparse has it: a flag at the end of a command overrides
    flags_.emplace(option.key, std::move(given));
  }
  for (const auto& [key, why] : without_counterpart()) {
    auto given = std::make_unique<Flag>();
    given->option = command.add_option(flag_of(key), given->text)->expected(0, 1)->group("");
    flags_.emplace(key, std::move(given));
  }
}

TrainOptions TrainOptionParser::options() const {
  for (const auto& [key, why] : without_counterpart()) {
    if (flags_.at(key)->option->count() > 0) fail(ErrorKind::input, "{}: {}", flag_of(key), why);
  }
  Given line;
  for (const Option& option : all_options()) {
    const Flag& flag = *flags_.at(option.key);
    if (flag.option->count() > 0) line.emplace(option.key, OptionSource::from_flag(flag_of(option.key), flag.text));
  }
  refuse_both(line);
  Given file;
  if (!config_.empty()) file = given_in(config_);
  refuse_both(file);
  values_of(file);  // checked where the command line goes over it, too
  const Given given = over(std::move(line), std::move(file));
  TrainOptions options = values_of(given);
  for (const char* key : {"model", "data", "output"}) {
    if (!given.contains(key)) {
      fail(ErrorKind::input, "{} is missing (or {} in the file given with -c)", flag_of(key), key);
    }
  }
  refuse_contradictions(options, given);
  set_fine_tuning(options, given);
  set_optimizer(options, given);
  set_schedule(options, given);
  return options;
}

}  // namespace trunkline
