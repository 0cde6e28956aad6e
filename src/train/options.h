// What a training run is asked to do, as values.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "plan/step_blocks.h"
#include "train/dataset.h"
#include "train/gradient_exchange.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "trunkline/dtype.h"
#include "trunkline/group.h"

namespace trunkline {

enum class FineTune { full, lora, dora };

constexpr double kDefaultLoraScale = 20.0;
constexpr int64_t kDefaultLoraLayers = 16;

// What of an adapter to train is asked for.
struct LoraOptions {
  int64_t rank = 8;
  std::optional<double> scale, alpha;  // at most one; neither: a scale of 20
  double dropout = 0.0;
  bool rslora = false;
  std::vector<std::string> keys;  // modules, by names or tails of names; none: all linear layers of the layers
  std::filesystem::path start;    // an adapter to begin with, whose settings are used instead of these
};

// Names and meanings of the fields are those of the flags and YAML keys: docs/options.md.
struct TrainOptions {
  std::filesystem::path model, data, output;
  bool test = false;
  bool resume = false;

  FineTune fine_tune = FineTune::full;
  // The last of the model's that are trained, or have an adapter; -1: all of them. None: 16 have an adapter, or all
  // that there are; in a full fine-tuning all is trained, what is outside of layers too.
  std::optional<int64_t> num_layers;
  LoraOptions lora;

  DataOptions rows;  // max_seq_length, mask_prompt, *_feature
  std::string optimizer_name = "adamw";
  OptimizerOptions optimizer;
  double learning_rate = 1e-5;
  ScheduleOptions schedule;    // without arguments: made from learning_rate and the run's length
  double max_grad_norm = 0.0;  // 0: no clipping
  // Standard deviations above the last skip_window steps from which a step's update is left out; 0: it never is.
  double skip_loss_z = 0.0, skip_grad_z = 0.0;
  int64_t skip_window = 128;

  bool packing = false;    // several rows to a sequence
  int64_t batch_size = 4;  // sequences of the global batch of one micro-step
  int64_t grad_accumulation_steps = 1;
  int64_t iters = 1000;  // optimizer steps
  int64_t epochs = 0;    // instead of iters; 0: iters count
  uint64_t seed = 0;

  // How a step is computed. None of it but blocks and whole_graph enters the weights.
  bool whole_graph = false;
  Sync sync = Sync::overlap;
  Dtype dtype = Dtype::f32;       // or bf16: what the model is computed in
  bool pure_bf16 = false;         // no f32 masters: trained weights are bf16 themselves
  Dtype wire_dtype = Dtype::f32;  // or bf16: as what gradients travel; with several ranks it enters the weights
  bool shard_optimizer = false;
  bool hold_gradients = false;
  bool busy_wait = false;
  Recompute recompute = Recompute::automatic;
  double memory_limit = 0.0;  // GiB that a step may take; 0: from the device
  // Sizes of blocks, 0: chosen (plan/step_blocks.h).
  int64_t query_block = 0, token_block = 0, loss_block = 0, vocab_slice = 0;
  std::filesystem::path trace;  // rank 0's timeline, as a Chrome trace; other ranks' beside it

  int64_t val_batches = 25, test_batches = 500;  // -1: all
  int64_t early_stopping_patience = 0;    // validations in a row without a better loss that end the run; 0: none do
  double early_stopping_threshold = 0.0;  // by how much a loss must be lower to be better
  bool keep_best = false, load_best_model_at_end = false;
  int64_t steps_per_report = 10, steps_per_eval = 200, save_every = 100, check_every = 100;
  int64_t keep = 2;                 // snapshots
  std::optional<Dtype> save_dtype;  // none: the source's dtypes

  // Of the group; none: as the environment says (docs/environment.md).
  std::optional<double> timeout;  // seconds
  std::optional<int64_t> lanes;
  std::optional<Algorithm> algorithm;
};

struct Setting {
  enum class Scope {
    place,  // may differ between ranks and on resume: paths
    pace,   // the same on all ranks, free to change on resume: it does not enter the weights
    run     // the same on all ranks and on resume
  };
  std::string key, value;  // as one line of YAML
  Scope scope;
};

// Every option under its YAML key, in the order in which people read them.
std::vector<Setting> settings_of(const TrainOptions& options);

inline bool keeps_best(const TrainOptions& options) { return options.keep_best || options.load_best_model_at_end; }

// The schedule in full: its arguments, where the options left them out, from the learning rate and the run's length.
ScheduleOptions full_schedule(const TrainOptions& options, int64_t total_steps);

}  // namespace trunkline
