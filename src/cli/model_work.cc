#include <fmt/format.h>

#include "base/clock.h"
#include "base/fail.h"
#include "cli/step_work.h"
#include "model/backend.h"
#include "plan/least_limit.h"
#include "train/agreement.h"
#include "train/layerwise.h"
#include "train/random_model.h"
#include "train/run_memory.h"
#include "train/run_weights.h"
#include "train/together.h"
#include "train/update.h"

namespace trunkline {
namespace {

constexpr double kLearningRate = 1e-6;
constexpr OptimizerOptions kSgd{.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0};
constexpr uint64_t kWeightsSeed = 7;  // the same on all ranks
constexpr uint64_t kRowsSeed = 100;   // and the rank

// Throws Error(input) on all ranks where a step does not fit in the memory of one: before anything of it is there.
StepSize size_of(Group& group, const ModelWork& work, const ModelShape& shape) {
  // With a shared optimizer each rank has its part of the weights once more.
  const int64_t ranks = work.shard_optimizer ? group.size() : 1;
  const StepSize size{.rows = work.rows,
                      .tokens = work.tokens,
                      .targets = work.rows * work.tokens,
                      .state_width = ranks > 1 ? (4 + ranks - 1) / ranks : 0,
                      .makes_scores = attention_makes_scores(mx::float32, static_cast<int>(shape.head_dim)),
                      .blocks_at_once = blocks_at_once()};
  together(group, [&] {
    const int64_t least = least_limit(shape, size), limit = memory_for_steps(group, 0.0);
    if (least <= limit) return;
    fail(ErrorKind::input,
         "--model: a step takes at least {}, and a rank may take {} here: take a smaller model, or fewer --rows or "
         "--tokens",
         memory_text(least), memory_text(limit));
  });
  return size;
}

class Model final : public StepWork {
 public:
  Model(Group& group, const ModelWork& work, Timeline& timeline, bool summed)
      : group_(group),
        work_(work),
        timeline_(timeline),
        summed_(summed),
        decoder_(read_model_shape(work.config)),
        size_(size_of(group, work, decoder_.shape())),
        weights_(group, decoder_, Trained::all(decoder_.layout().size()),
                 random_weights(decoder_, mx::float32, kWeightsSeed)),
        batch_(random_batch(static_cast<int>(work.rows), static_cast<int>(work.tokens), decoder_.shape().vocab,
                            kRowsSeed + static_cast<uint64_t>(group.rank()))) {
    blocks_ = choose_blocks(decoder_.shape(), size_, memory_for_steps(group, 0.0));
    group.all_min(&blocks_.vocab_rows, &blocks_.vocab_rows, 1, Dtype::i64);
    const bool shared = work.shard_optimizer && group.size() > 1;
    weights_.begin({.optimizer = kSgd, .shared = shared});
    if (!shared) return;
    weights_.share(blocks_.vocab_rows);
    weights_.sharded()->changed();  // the first step gathers as well
  }

  std::string describe() const override {
    return fmt::format("real computation: {} parameters of random weights, {} x {} tokens a rank, SGD{}, on {}",
                       decoder_.shape().parameters(), work_.rows, work_.tokens,
                       shards() != nullptr ? " with a shared optimizer" : "", describe_backend());
  }
  int64_t gradient_bytes() const override { return decoder_.shape().parameters() * 4; }

  void begin(int64_t number, bool) override {
    const UpdateOptions options{
        .learning_rate = kLearningRate, .group = summed_ ? &group_ : nullptr, .shards = shards()};
    ShardedWeights* const sharded = weights_.sharded();
    Parameters& parameters = weights_.parameters();
    update_.emplace(decoder_, sharded != nullptr ? sharded->own() : parameters, weights_.optimizer(), updates_, number,
                    batch_.target_count * group_.size(), options);
    pass_.emplace(decoder_, parameters, weights_.trained(), batch_, blocks_, [this] { group_.advance(); });
  }
  void forward() override {
    if (ShardedWeights* const sharded = weights_.sharded(); sharded != nullptr) {
      sharded->start(weights_.parameters());
      pass_->before_layer([this, sharded](int64_t layer) {
        const Timeline::Span span(timeline_, Timeline::Track::exposed, "waiting for weights");
        sharded->wait_for(layer);
      });
    }
    pass_->forward();
  }
  void backward(const HandOver& hand_over) override { pass_->backward(hand_over); }
  void update(const Piece& piece, std::vector<mx::array> gradients) override {
    update_->take(piece, std::move(gradients));
  }
  void end() override {
    update_->finish();
    pass_.reset();
    if (weights_.sharded() != nullptr) weights_.sharded()->changed();
  }
  const Shards* shards() const override { return weights_.shards(); }
  GatherTimes gather_alone() override {
    ShardedWeights* const sharded = weights_.sharded();
    if (sharded == nullptr) return {};
    GatherTimes times;
    sharded->changed();
    const auto start = Clock::now();
    sharded->start(weights_.parameters());
    sharded->wait_for(-1);
    times.first = seconds_since(start);
    sharded->finish();
    times.all = seconds_since(start);
    sharded->changed();  // the next step gathers all the same
    return times;
  }
  uint64_t count_wrong() override {
    if (!summed_) return 0;
    gather_alone();
    const Parameters& parameters = weights_.parameters();
    const std::vector<uint32_t> mine = hashes_of(parameters);
    std::vector<uint32_t> all(mine.size() * static_cast<size_t>(group_.size()));
    group_.all_gather(mine.data(), all.data(), mine.size(), Dtype::u32);
    uint64_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != all[i % mine.size()]) wrong += parameters[i % mine.size()].size();
    }
    return wrong;
  }

 private:
  Group& group_;
  const ModelWork work_;
  Timeline& timeline_;
  Timeline updates_;  // whoever calls update() times it
  const bool summed_;
  const Decoder decoder_;
  const StepSize size_;  // before weights_: throws where they would not fit
  RunWeights weights_;
  Batch batch_;
  StepBlocks blocks_;
  std::optional<Update> update_;
  std::optional<LayerwisePass> pass_;
};

}  // namespace

std::unique_ptr<StepWork> model_work(Group& group, const ModelWork& work, Timeline& timeline, bool summed) {
  return std::make_unique<Model>(group, work, timeline, summed);
}

}  // namespace trunkline
