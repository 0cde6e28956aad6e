#include "train/run_weights.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>

#include "comm/ranks_test.h"
#include "model/golden_model_test.h"
#include "train/fine_tune.h"
#include "train/random_model.h"

namespace trunkline {
namespace {

using testing_model::golden_model;
using testing_model::same_bits;

class RunWeightsTest : public ::testing::Test {
 protected:
  // In f32, of a seed; `layers`: trained of the last, or all.
  std::unique_ptr<RunWeights> weights(Group& group, std::optional<int64_t> layers = {}) const {
    TrainOptions options;
    options.num_layers = layers;
    return std::make_unique<RunWeights>(group, decoder_, trained_tensors(options, decoder_),
                                        random_weights(decoder_, mx::float32, 5));
  }
  int64_t parameters() const { return decoder_.shape().parameters(); }

  const Decoder decoder_{load_checkpoint(golden_model("qwen3-tied")).shape};
};

void alone(const std::function<void(Group&)>& body) {
  for (const auto& thrown : testing::run_threads(1, body)) EXPECT_EQ(thrown.text, "");
}

TEST_F(RunWeightsTest, MemoryIsThatOfWhatIsTrained) {
  alone([&](Group& group) {
    const auto all = weights(group);
    all->begin({});
    EXPECT_FALSE(all->size().part);
    EXPECT_EQ(all->size().state_width, 8);
    const auto last = weights(group, 1);
    int64_t of_layer = 0;
    for (const mx::array& tensor : last->trained().of(last->parameters())) {
      of_layer += static_cast<int64_t>(tensor.size());
    }
    ASSERT_LT(of_layer, parameters() / 2);
    last->begin({});
    StepSize size = last->size();
    size.pieces_on_their_way = 0;
    EXPECT_EQ(size.part->parameters, of_layer);
    EXPECT_EQ(size.part->weight_bytes, 4 * parameters());
    EXPECT_EQ(size.part->layers, 1);
    EXPECT_EQ(size.part->mlp + size.part->attention, of_layer);
    EXPECT_FALSE(size.part->head);
    const StepMemory memory = step_memory(decoder_.shape(), size, {1, 1, 1, 1});
    EXPECT_EQ(memory.state, 8 * of_layer);
    EXPECT_LE(memory.gradients, 4 * of_layer);
    const auto rounded = weights(group, -1);
    rounded->begin({.dtype = Dtype::bf16, .masters = true});
    EXPECT_EQ(rounded->size().part->layers, decoder_.shape().layers);
    EXPECT_EQ(rounded->size().part->weight_bytes, 2 * parameters());
    EXPECT_EQ(rounded->size().width, 2);
    EXPECT_EQ(rounded->size().state_width, 12);
    const auto pure = weights(group, 1);
    pure->begin({.dtype = Dtype::bf16});
    EXPECT_EQ(pure->size().state_width, 8);
  });
}

// Masters are what the weights were when steps begin, not before, and those alone.
TEST_F(RunWeightsTest, MastersBeginAsWhatIsGoneOnFrom) {
  alone([&](Group& group) {
    const auto run = weights(group);
    Parameters gone_on_from = random_weights(decoder_, mx::float32, 6);
    Parameters expected;
    for (const mx::array& tensor : gone_on_from) expected.push_back(mx::copy(tensor));
    mx::eval(expected);
    const size_t before = mx::get_active_memory();
    run->parameters() = std::move(gone_on_from);
    run->begin({.optimizer = {.kind = OptimizerOptions::Kind::sgd}, .dtype = Dtype::bf16, .masters = true});
    // The first weights are gone, and 2 bytes each have come.
    const auto grown = static_cast<int64_t>(mx::get_active_memory()) - static_cast<int64_t>(before);
    EXPECT_LT(grown, -parameters());
    const Parameters masters = run->trained_weights();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(masters[i], expected[i]));
      EXPECT_TRUE(same_bits(run->parameters()[i], mx::astype(expected[i], mx::bfloat16)));
    }
    run->end();
    Parameters other = expected;
    other.back() = other.back() + mx::array(1.0f);
    run->compute_with(other);
    EXPECT_TRUE(same_bits(run->parameters().back(), mx::astype(other.back(), mx::bfloat16)));
  });
}

TEST_F(RunWeightsTest, SharedPartsAreWholeOnTheFirstRank) {
  const Parameters expected = random_weights(decoder_, mx::float32, 5);
  std::vector<Parameters> trained(2), states(2);
  std::vector<StepSize> before(2), after(2);
  std::mutex mlx;  // one thread computes at a time; none of this waits for the other rank
  const auto thrown = testing::run_threads(2, [&](Group& group) {
    std::unique_ptr<RunWeights> run;
    const auto rank = static_cast<size_t>(group.rank());
    {
      const std::lock_guard lock(mlx);
      run = weights(group, 1);
      run->begin({.dtype = Dtype::bf16, .masters = true, .shared = true});
      before[rank] = run->size();
      run->share(20);
      after[rank] = run->size();
    }
    trained[rank] = run->trained_weights();
    for (auto& [name, array] : run->optimizer_state()) states[rank].push_back(array);
  });
  for (const auto& each : thrown) EXPECT_EQ(each.text, "");
  TrainOptions last;
  last.num_layers = 1;
  const Trained mask = trained_tensors(last, decoder_);
  const Parameters layer = mask.of(expected);
  ASSERT_EQ(trained[0].size(), layer.size());
  for (size_t i = 0; i < layer.size(); ++i) EXPECT_TRUE(same_bits(trained[0][i], layer[i])) << i;
  EXPECT_EQ(states[0].size(), 2 * layer.size());
  for (const StepSize& size : after) EXPECT_EQ(size.state_width, 6) << "of 12 bytes half";
  EXPECT_EQ(before[0].state_width, after[0].state_width) << "known before they are shared";
}

}  // namespace
}  // namespace trunkline
