#include "train/trainer.h"

#include <algorithm>
#include <optional>

#include "base/clock.h"
#include "base/directory_lock.h"
#include "base/fail.h"
#include "base/interrupt.h"
#include "base/settings.h"
#include "base/version.h"
#include "model/backend.h"
#include "plan/least_limit.h"
#include "train/agreement.h"
#include "train/announcement.h"
#include "train/batches.h"
#include "train/facts.h"
#include "train/fine_tune.h"
#include "train/output.h"
#include "train/progress.h"
#include "train/run_data.h"
#include "train/run_memory.h"
#include "train/run_snapshots.h"
#include "train/run_weights.h"
#include "train/step.h"
#include "train/together.h"
#include "train/validation.h"

namespace trunkline {
namespace {

Parameters take_as_f32(Checkpoint& checkpoint) {
  Parameters parameters;
  for (mx::array& tensor : checkpoint.tensors) {
    parameters.push_back(cast({std::exchange(tensor, mx::array(0.0f))}, mx::float32).front());
    parameters.back().eval();
  }
  checkpoint.tensors.clear();
  return parameters;
}

// Packed rows see only themselves: a block of few queries meets few keys.
constexpr int64_t kPackedQueries = 256;

class Trainer {
 public:
  Trainer(const TrainOptions& options, Group& group) : options_(options), group_(group) {}

  TrainOutcome run() {
    const InterruptWatch interrupts;
    memory_limit_ = memory_for_steps(group_, options_.memory_limit);
    bound_memory(memory_limit_);
    if (!prepare(interrupts)) return TrainOutcome::interrupted;
    agree();
    begin(options_.resume ? go_on() : std::nullopt);
    bool interrupted = false;
    snapshots_->or_say_how_to_go_on([&] {
      announce();
      interrupted = loop(interrupts);
      progress_->breakdown();
      if (!interrupted) finish();
    });
    write_trace();
    return interrupted ? TrainOutcome::interrupted : TrainOutcome::finished;
  }

 private:
  // Rank 0's is the name asked for; the others' have their rank before the extension.
  std::filesystem::path trace_path() const {
    if (leads()) return options_.trace;
    const std::filesystem::path& path = options_.trace;
    return path.parent_path() / fmt::format("{}.{}{}", path.stem().string(), group_.rank(), path.extension().string());
  }

  // Last: all else is saved by now, and a trace is not worth failing for.
  void write_trace() const {
    if (options_.trace.empty() || nothing_left_) return;
    try {
      timeline_->write(trace_path(), group_.rank());
    } catch (const std::exception& error) {
      fmt::print(stderr, "trunkline: warning: no trace was written: {}\n", error.what());
    }
  }

  bool leads() const { return group_.rank() == 0; }
  int64_t rows_per_micro_batch() const { return (options_.batch_size + group_.size() - 1) / group_.size(); }

  // Returns whether it came to its end.
  bool prepare(const InterruptWatch& interrupts) {
    together(group_, [&] {
      if (leads()) take_output();
    });
    together(group_, [&] {
      if (!options_.trace.empty()) Timeline::check_path(trace_path());
      checkpoint_ = load_checkpoint(options_.model);
      adapter_ = adapter_to_train(options_, checkpoint_);
      if (adapter_) std::ranges::copy(adapter_->warnings, std::back_inserter(warnings_));
      decoder_.emplace(checkpoint_.shape, adapter_ ? adapter_->shape : AdapterShape{});
      Parameters parameters = take_as_f32(checkpoint_);
      if (adapter_) std::ranges::move(std::exchange(adapter_->tensors, {}), std::back_inserter(parameters));
      mx::eval(parameters);
      hashes_ = hashes_of(parameters);
      weights_.emplace(group_, *decoder_, trained_tensors(options_, *decoder_), std::move(parameters));
    });
    std::optional<RunData> data = read_data(group_, options_, checkpoint_.shape.vocab, interrupts);
    if (!data) return false;
    data_ = std::move(*data);
    if (!data_.valid && (options_.early_stopping_patience > 0 || keeps_best(options_))) {
      fail(ErrorKind::input, "{} needs a validation, and there is none (no valid.jsonl, or val_batches 0)",
           options_.early_stopping_patience > 0 ? "early_stopping_patience" : "keeping the best checkpoint");
    }
    order_.emplace(data_.train->count(), options_.batch_size * options_.grad_accumulation_steps, options_.seed);
    total_ = options_.epochs > 0 ? options_.epochs * order_->steps_per_epoch() : options_.iters;
    options_.schedule = full_schedule(options_, total_);
    schedule_.emplace(options_.schedule);
    timeline_.emplace(!options_.trace.empty());
    snapshots_.emplace(group_, options_.output, trained_layout(), options_.keep, keeps_best(options_));
    if (adapter_) weight_facts_.push_back(fact_of(adapter_->shape));
    weight_facts_.push_back(fact_of_base({hashes_.begin(), hashes_.begin() + std::ssize(checkpoint_.layout)}));
    return true;
  }

  void take_output() {
    check_output(options_.output, options_.resume);
    output_.emplace(options_.output, "--output");
    check_output(options_.output, options_.resume);  // the run that had it may have come to its end just now
  }

  std::vector<TensorShape> trained_layout() const { return weights_->trained().of(decoder_->layout()); }

  // What a snapshot must share with the run that goes on from it.
  std::vector<Fact> run_facts() const {
    std::vector<Fact> facts = facts_of(checkpoint_.shape);
    facts.push_back(fact_of("train.jsonl", data_.train->dataset()));
    std::ranges::copy(facts_of(options_, false), std::back_inserter(facts));
    std::ranges::copy(weight_facts_, std::back_inserter(facts));
    return facts;
  }

  void agree() {
    std::vector<Fact> facts = {{"trunkline", std::string(version())}, {"resume", options_.resume ? "yes" : "no"}};
    std::ranges::copy(facts_of(checkpoint_.shape), std::back_inserter(facts));
    facts.push_back(fact_of("train.jsonl", data_.train->dataset()));
    if (data_.valid) facts.push_back(fact_of("valid.jsonl", data_.valid->dataset()));
    if (data_.test) facts.push_back(fact_of("test.jsonl", data_.test->dataset()));
    std::ranges::copy(facts_of(options_, true), std::back_inserter(facts));
    std::ranges::copy(weight_facts_, std::back_inserter(facts));
    // A resumed run takes what it trains from the snapshot.
    if (!options_.resume) {
      std::ranges::copy(facts_of(trained_layout(), weights_->trained().of(hashes_)), std::back_inserter(facts));
    }
    require_agreement(group_, facts);
  }

  std::optional<Resumed> go_on() {
    std::optional<Resumed> resumed = snapshots_->resume(run_facts(), *weights_, warnings_);
    if (!resumed) {
      together(group_, [&] {
        if (leads()) check_begins_again(options_.output);
      });
      notes_.push_back("no checkpoint was saved before this run ended: it begins again");
      return resumed;
    }
    if (resumed->state.step > total_) {
      fail(ErrorKind::input, "--resume: the newest checkpoint is of step {}, past the run's {} steps",
           resumed->state.step, total_);
    }
    state_ = resumed->state;
    losses_.restore(state_.losses);
    grad_norms_.restore(state_.grad_norms);
    nothing_left_ = state_.step == total_ || stops_early();
    notes_.push_back(nothing_left_ ? fmt::format("nothing left to train: {} steps are done", state_.step)
                                   : fmt::format("going on from step {}", state_.step));
    snapshots_->warn_of_lost_best(state_, options_.load_best_model_at_end, nothing_left_, warnings_);
    if (resumed->ranks != group_.size()) {
      notes_.push_back(fmt::format(
          "the checkpoint was made on {} rank{} and this run has {}: every step takes the same rows, but sums are "
          "rounded in another order, so the weights will differ in their last bits",
          resumed->ranks, resumed->ranks == 1 ? "" : "s", group_.size()));
    }
    return resumed;
  }

  bool shares_optimizer() const { return options_.shard_optimizer && group_.size() > 1; }
  bool has_masters() const { return options_.dtype != Dtype::f32 && !options_.pure_bf16; }

  // With the weights to begin or go on with.
  void begin(std::optional<Resumed> resumed) {
    weights_->begin({.optimizer = options_.optimizer,
                     .dtype = options_.dtype,
                     .masters = has_masters(),
                     .shared = shares_optimizer()});
    std::vector<std::string> on_memory;
    state_.memory_limits = limits_for_sizes(group_, memory_limit_, state_.memory_limits, on_memory);
    if (!nothing_left_ && !options_.whole_graph) std::ranges::move(on_memory, std::back_inserter(notes_));
    choose_fixed_blocks();
    if (shares_optimizer()) weights_->share(blocks_.vocab_rows);
    if (resumed) weights_->restore_optimizer(std::move(resumed->optimizer), resumed->state.step);
  }

  std::string describe_fine_tuning() const {
    return adapter_ ? describe(adapter_->shape, checkpoint_.shape) : describe(weights_->trained(), *decoder_);
  }

  const char* describe_dtype() const {
    if (options_.dtype == Dtype::f32) return "float32";
    return has_masters() ? "bfloat16 with float32 masters" : "bfloat16 alone";
  }

  void announce() {
    together(group_, [&] {
      if (!leads() || nothing_left_) return;
      if (!options_.resume) snapshots_->clean();
      write_settings(options_.output, settings_of(options_));
    });
    progress_.emplace(options_.output, total_, options_.steps_per_report, !leads());
    if (!nothing_left_ || options_.test) progress_->open(state_.step, warnings_);
    progress_->say(describe_backend());
    progress_->say("settings:");
    for (const Setting& setting : settings_of(options_)) {
      progress_->say(fmt::format("  {}: {}", setting.key, setting.value));
    }
    for (const auto* rows : {&data_.train, &data_.valid, &data_.test}) {
      if (*rows) progress_->say(describe(**rows));
    }
    if (!data_.valid) progress_->say("no validation (no valid.jsonl, or val_batches 0)");
    for (const auto* list : {&checkpoint_.warnings, &data_.warnings, &warnings_}) {
      for (const std::string& warning : *list) progress_->say("warning: " + warning);
    }
    progress_->say(fmt::format("{} in {} on {} rank{}, {} steps ({} an epoch)", describe_fine_tuning(),
                               describe_dtype(), group_.size(), group_.size() == 1 ? "" : "s", total_,
                               order_->steps_per_epoch()));
    for (const std::string& line : describe_ranks(options_, group_.size())) progress_->say(line);
    if (group_.size() > 1 && Settings::get().fabric_fd) {
      progress_->say("the ranks talk over emulated cables: speeds and times are those of an emulation");
    }
    for (const std::string& line : describe_step(step_context(), largest_)) progress_->say(line);
    for (const std::string& note : notes_) progress_->say(note);
  }

  // Returns whether an interrupt ended it.
  bool loop(const InterruptWatch& interrupts) {
    if (state_.step == 0 && data_.valid) measure("val", *data_.valid, options_.val_batches);
    while (state_.step < total_ && !stops_early()) {
      const bool stop = step(interrupts.wished());
      const bool due = state_.step % options_.steps_per_eval == 0 || state_.step == total_;
      const bool best = data_.valid && due && validate();
      const bool last = stop || state_.step == total_ || stops_early();
      const bool save = last || state_.step % options_.save_every == 0 || (best && keeps_best(options_));
      if (save || state_.step % options_.check_every == 0) {
        weights_->gather();
        require_equal_weights(group_, trained_layout(), weights_->trained().of(weights_->parameters()), state_.step);
      }
      if (save) this->save();
      if (!stop || state_.step == total_ || stops_early()) continue;
      progress_->say(fmt::format("interrupted after step {} of {}; to go on, give the same command with --resume",
                                 state_.step, total_));
      return true;
    }
    if (stops_early()) {
      progress_->say(
          fmt::format("early stopping after step {}: the last {} validations were not better than {:.4f}, "
                      "that of step {}",
                      state_.step, state_.best.worse_since, *state_.best.loss, state_.best.step));
    }
    return false;
  }

  bool stops_early() const {
    return options_.early_stopping_patience > 0 && state_.best.worse_since >= options_.early_stopping_patience;
  }

  // After a step. Returns whether it is the best so far.
  bool validate() {
    const auto start = Clock::now();
    const double loss = mean_loss_of(*data_.valid, options_.val_batches);
    const bool best = state_.best.take(state_.step, loss, options_.early_stopping_threshold);
    progress_->loss(state_.step, "val", loss, seconds_since(start), state_.best);
    return best;
  }

  bool holds_gradients() const {
    return options_.hold_gradients || options_.max_grad_norm > 0.0 || options_.grad_accumulation_steps > 1 ||
           grad_norms_.on();
  }

  StepContext step_context() {
    return {.group = group_,
            .decoder = *decoder_,
            .parameters = weights_->parameters(),
            .trained = weights_->trained(),
            .optimizer = weights_->optimizer(),
            .rows = *data_.train,
            .timeline = *timeline_,
            .dropout = adapter_ ? adapter_->shape.dropout : 0.0,
            .seed = options_.seed,
            .max_grad_norm = options_.max_grad_norm,
            .losses = losses_.on() ? &losses_ : nullptr,
            .grad_norms = grad_norms_.on() ? &grad_norms_ : nullptr,
            .accumulates = options_.grad_accumulation_steps > 1,
            .hold_gradients = holds_gradients(),
            .whole_graph = options_.whole_graph,
            .exchange = {.sync = options_.sync,
                         .busy_wait = options_.busy_wait,
                         .wire = options_.wire_dtype,
                         .shards = weights_->shards()},
            .sharded = weights_->sharded(),
            .weights = weights_->size(),
            .memory_limit = memory_limit_,
            .limit_for_sizes = state_.memory_limits[static_cast<size_t>(group_.rank())],
            .blocks = blocks_,
            .recompute = options_.recompute};
  }

  // What of the blocks does not depend on a step's rows. Ranks hand over the same slices of the head.
  void choose_fixed_blocks() {
    blocks_ = {.queries = options_.query_block,
               .tokens = options_.token_block,
               .logits = options_.loss_block,
               .vocab_rows = options_.vocab_slice};
    int64_t longest = 1;
    for (int64_t row = 0; row < data_.train->count(); ++row) longest = std::max(longest, data_.train->length(row));
    const int64_t rows = rows_per_micro_batch();
    largest_ = size_of(step_context(), rows, longest, rows * longest);
    together(group_, [&] {
      if (options_.whole_graph) return;
      require_memory(least_limit(decoder_->shape(), largest_, blocks_, options_.recompute), memory_limit_);
    });
    const StepBlocks chosen = blocks_for(step_context(), largest_);
    blocks_.vocab_rows = chosen.vocab_rows;
    if (options_.packing && options_.query_block == 0) blocks_.queries = std::min(chosen.queries, kPackedQueries);
    group_.all_min(&blocks_.vocab_rows, &blocks_.vocab_rows, 1, Dtype::i64);
  }

  // Returns whether a rank wishes to stop.
  bool step(bool stop_wish) {
    const std::vector<int64_t> rows = order_->step(state_.step);
    std::vector<int64_t> lengths;
    for (const int64_t row : rows) lengths.push_back(data_.train->length(row));
    const auto parts = spread(rows, lengths, group_.size(), rows_per_micro_batch());
    StepContext context = step_context();
    const double rate = schedule_->rate(state_.step);
    const auto start = Clock::now();
    StepResult result;
    try {
      result = run_step(context, state_.step + 1, parts[static_cast<size_t>(group_.rank())], rate, stop_wish);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::numeric) throw;
      fail(ErrorKind::numeric, "{}; {}", error.what(), snapshots_->last_good());
    }
    if (output_) output_->require();
    ++state_.step;
    if (result.spike == StepResult::Spike::none) {
      state_.trained_tokens += result.targets;
    } else {
      ++state_.skipped_steps;
    }
    progress_->step(state_, result, rate, seconds_since(start));
    if (result.spike == StepResult::Spike::loss) progress_->spike(state_.step, "loss", result.loss, losses_);
    if (result.spike == StepResult::Spike::grad_norm) {
      progress_->spike(state_.step, "gradient norm", result.grad_norm, grad_norms_);
    }
    return result.stop;
  }

  void measure(const char* name, const Sequences& rows, int64_t batches) {
    const auto start = Clock::now();
    const double loss = mean_loss_of(rows, batches);
    progress_->loss(state_.step, name, loss, seconds_since(start));
  }

  double mean_loss_of(const Sequences& rows, int64_t batches) {
    weights_->gather();
    const int64_t limit = batches < 0 ? -1 : batches * options_.batch_size;
    return mean_loss(group_, *decoder_, weights_->parameters(), rows, limit, rows_per_micro_batch());
  }

  void save() {
    state_.losses = losses_.values();
    state_.grad_norms = grad_norms_.values();
    snapshots_->save(state_, options_.seed, run_facts(), *weights_);
    progress_->say(fmt::format("saved {}", snapshots_->path_of(state_.step).string()));
  }

  void finish() {
    Parameters trained = weights_->trained_weights();
    weights_->end();
    if (options_.load_best_model_at_end) take_best(trained);
    bool there = false;
    together(group_, [&] {
      if (!leads()) return;
      there = nothing_left_ && is_saved(trained);
      if (there) return;
      if (nothing_left_ && lacks_best()) check_holds_no_best(options_.output);
      save_trained(trained);
    });
    progress_->say(fmt::format("{} {} to {}; reload equal: all {} tensors", there ? "saved before: the" : "saved the",
                               adapter_ ? "adapter" : "model", options_.output.string(),
                               adapter_ ? adapter_->layout.size() : checkpoint_.layout.size()));
    weights_->compute_with(trained);
    if (data_.test) measure("test", *data_.test, options_.test_batches);
  }

  bool lacks_best() const { return options_.load_best_model_at_end && !snapshots_->has_best(state_); }

  bool is_saved(const Parameters& trained) {
    if (adapter_) return holds_adapter(trained, checkpoint_, options_.output, options_.save_dtype);
    return holds_model(checkpoint_, weights_->trained(), trained, weights_->parameters(), options_.output,
                       options_.save_dtype);
  }

  void save_trained(const Parameters& trained) {
    if (nothing_left_) write_settings(options_.output, settings_of(options_));
    if (adapter_) {
      save_trained_adapter(*adapter_, trained, checkpoint_, options_.output, options_.save_dtype);
    } else {
      save_model(checkpoint_, weights_->trained(), trained, weights_->parameters(), options_.output,
                 options_.save_dtype);
    }
  }

  // What was trained becomes what it was at the best validation.
  void take_best(Parameters& trained) {
    if (lacks_best()) {
      progress_->say("the model is that of the last step: there is no checkpoint of the best validation");
      return;
    }
    if (state_.best.step != state_.step) snapshots_->load_best(trained);
    progress_->say(fmt::format("the model is that of step {}, whose validation loss, {:.4f}, was the best",
                               state_.best.step, *state_.best.loss));
  }

  TrainOptions options_;
  Group& group_;
  Checkpoint checkpoint_;
  std::optional<Adapter> adapter_;  // its tensors are among the parameters
  std::optional<Decoder> decoder_;
  std::optional<RunWeights> weights_;
  RunData data_;
  std::optional<StepRows> order_;
  std::optional<Schedule> schedule_;
  std::optional<DirectoryLock> output_;  // rank 0's
  std::optional<RunSnapshots> snapshots_;
  std::optional<Progress> progress_;
  std::vector<uint32_t> hashes_;  // of the parameters that the run begins with
  std::vector<Fact> weight_facts_;
  std::vector<std::string> warnings_, notes_;
  std::optional<Timeline> timeline_;
  bool nothing_left_ = false;  // a resumed run is at its end
  int64_t memory_limit_ = 0;
  StepBlocks blocks_;  // asked for, or the same for all steps
  StepSize largest_;   // micro-batch there may be
  int64_t total_ = 0;
  RunState state_;
  SpikeWatch losses_{options_.skip_loss_z, options_.skip_window};
  SpikeWatch grad_norms_{options_.skip_grad_z, options_.skip_window};
};

}  // namespace

TrainOutcome train(const TrainOptions& options, Group& group) { return Trainer(options, group).run(); }

}  // namespace trunkline
