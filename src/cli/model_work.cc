#include <fmt/format.h>

#include "base/memory.h"
#include "cli/step_work.h"
#include "model/backend.h"
#include "train/agreement.h"
#include "train/random_model.h"
#include "train/update.h"

namespace trunkline {
namespace {

constexpr double kUsableShare = 0.8;  // of the memory that this machine's ranks share
constexpr double kLearningRate = 1e-6;
constexpr uint64_t kWeightsSeed = 7;  // the same on all ranks
constexpr uint64_t kRowsSeed = 100;   // and the rank

class Model final : public StepWork {
 public:
  Model(Group& group, const ModelWork& work, Timeline& timeline, bool summed)
      : group_(group),
        work_(work),
        timeline_(timeline),
        summed_(summed),
        decoder_(read_model_shape(work.config)),
        parameters_(random_weights(decoder_, mx::float32, kWeightsSeed)),
        trained_(Trained::all(parameters_.size())),
        optimizer_({.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0}, decoder_.layout(), trained_),
        batch_(random_batch(static_cast<int>(work.rows), static_cast<int>(work.tokens), decoder_.shape().vocab,
                            kRowsSeed + static_cast<uint64_t>(group.rank()))) {
    const StepSize size{.rows = work.rows, .tokens = work.tokens, .targets = batch_.target_count};
    const double limit = kUsableShare * static_cast<double>(device_memory()) / group.size();
    blocks_ = choose_blocks(decoder_.shape(), size, static_cast<int64_t>(limit), {}, Recompute::automatic);
    group.all_min(&blocks_.vocab_rows, &blocks_.vocab_rows, 1, Dtype::i64);
  }

  std::string describe() const override {
    return fmt::format("real computation: {} parameters of random weights, {} x {} tokens a rank, SGD, on {}",
                       decoder_.shape().parameters(), work_.rows, work_.tokens, describe_backend());
  }
  int64_t gradient_bytes() const override { return decoder_.shape().parameters() * 4; }

  void begin(int64_t number, bool) override {
    update_.emplace(decoder_, parameters_, optimizer_, timeline_, number, batch_.target_count * group_.size(),
                    UpdateOptions{.learning_rate = kLearningRate});
    pass_.emplace(decoder_, parameters_, trained_, batch_, blocks_, [this] { group_.advance(); });
  }
  void forward() override { pass_->forward(); }
  void backward(const HandOver& hand_over) override { pass_->backward(hand_over); }
  void update(const Piece& piece, std::vector<mx::array> gradients) override {
    update_->take(piece, std::move(gradients));
  }
  void end() override {
    update_->finish();
    pass_.reset();
  }
  uint64_t count_wrong() override {
    if (!summed_) return 0;
    const std::vector<uint32_t> mine = hashes_of(parameters_);
    std::vector<uint32_t> all(mine.size() * static_cast<size_t>(group_.size()));
    group_.all_gather(mine.data(), all.data(), mine.size(), Dtype::u32);
    uint64_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != all[i % mine.size()]) wrong += parameters_[i % mine.size()].size();
    }
    return wrong;
  }

 private:
  Group& group_;
  const ModelWork work_;
  Timeline& timeline_;
  const bool summed_;
  Decoder decoder_;
  Parameters parameters_;
  Trained trained_;
  Optimizer optimizer_;
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
