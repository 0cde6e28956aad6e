// What a run trains; and gradients through a packed base, which are those of the base unpacked.
#include "train/fine_tune.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "model/packed_model_test.h"
#include "train/layerwise.h"
#include "train/loss.h"
#include "train/random_model.h"

namespace trunkline {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing_model::golden_model;
using testing_model::TestFolder;
using testing_model::write_packed;

Batch batch_of_tokens() {
  std::vector<int32_t> ids, positions, targets;
  for (int i = 0; i < 22; ++i) {
    ids.push_back((7 * i + 3) % 100 + 1);
    positions.push_back(i);
    targets.push_back((5 * i + 2) % 100 + 1);
  }
  return {.ids = mx::array(ids.begin(), {2, 11}, mx::int32),
          .positions = mx::array(positions.begin(), {22}, mx::int32),
          .targets = mx::array(targets.begin(), {22}, mx::int32),
          .target_count = 22,
          .places = mx::arange(11, mx::int32)};
}

TEST(FineTune, GradientsThroughAPackedBaseAreThoseOfWhatItUnpacksTo) {
  for (const auto& [type, keys] : {std::pair(FineTune::lora, std::vector<std::string>{}),
                                   {FineTune::dora, {"q_proj", "up_proj", "embed_tokens", "lm_head"}}}) {
    for (const char* name : {"qwen3-tied", "qwen3-untied"}) {
      const TestFolder folder;
      write_packed(folder, name, 8);
      const Checkpoint packed = load_checkpoint(folder / "packed"), plain = load_checkpoint(folder / "plain");
      TrainOptions options;
      options.fine_tune = type;
      options.lora.keys = keys;
      options.num_layers = -1;
      Adapter adapter = *adapter_to_train(options, plain);
      for (mx::array& tensor : adapter.tensors) tensor = tensor + mx::full(tensor.shape(), 0.01f);
      const auto joined = [&](const Checkpoint& base) {
        Parameters all = cast(base.tensors, mx::float32);
        all.insert(all.end(), adapter.tensors.begin(), adapter.tensors.end());
        return all;
      };
      const Decoder decoder(packed.shape, adapter.shape), unpacked(plain.shape, adapter.shape);
      const Parameters parameters = joined(packed), others = joined(plain);
      const Trained trained = trained_tensors(options, decoder);
      ASSERT_EQ(trained.tensors().size(), adapter.tensors.size());
      const Batch batch = batch_of_tokens();
      const LossAndGradients expected = loss_and_gradients(unpacked, others, trained_tensors(options, unpacked), batch);
      const LossAndGradients whole = loss_and_gradients(decoder, parameters, trained, batch);
      std::map<size_t, mx::array> found;
      LayerwisePass pass(decoder, parameters, trained, batch, {3, 4, 5, 1000});
      pass.forward();
      pass.backward([&](const Piece& piece, const std::vector<mx::array>& gradients) {
        for (size_t i = 0; i < gradients.size(); ++i) found.emplace(piece.rows[i].tensor, gradients[i]);
      });
      for (size_t i = 0; i < trained.tensors().size(); ++i) {
        const float largest = mx::max(mx::abs(expected.gradients[i])).item<float>();
        for (const mx::array& gradient : {whole.gradients[i], found.at(trained.tensors()[i])}) {
          EXPECT_LT(mx::max(mx::abs(gradient - expected.gradients[i])).item<float>(), 1e-4f * largest)
              << name << " " << adapter.layout[i].name;
        }
      }
    }
  }
}

TEST(FineTune, APackedBaseIsNotTrainedItself) {
  const TestFolder folder;
  write_packed(folder, "qwen3-tied", 4);
  try {
    adapter_to_train({}, load_checkpoint(folder / "packed"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("quantized and cannot be trained"));
  }
}

ModelShape wide_shape() {
  ModelShape shape;
  shape.hidden = 256;
  shape.intermediate = 2048;
  shape.layers = 3;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = 64;
  shape.vocab = 4096;
  return shape;
}

// The most that a pass of 8 tokens takes beyond its weights, as MLX's allocator has it; gradients are let go as they
// come.
int64_t peak_of_pass(const Decoder& decoder, const Trained& trained) {
  const Parameters parameters = random_weights(decoder, mx::float32, 3);
  const Batch batch = random_batch(1, 8, decoder.shape().vocab, 4);
  const auto run = [&] {
    LayerwisePass pass(decoder, parameters, trained, batch, {8, 8, 8, decoder.shape().vocab});
    pass.forward();
    pass.backward([](const Piece&, std::vector<mx::array> gradients) {
      mx::eval(gradients);
      gradients.clear();
    });
  };
  run();  // what is made once is there
  const size_t before = mx::get_active_memory();
  mx::reset_peak_memory();
  run();
  return static_cast<int64_t>(mx::get_peak_memory()) - static_cast<int64_t>(before);
}

// A matrix of an MLP has 2 MiB, the head 4; what is computed of 8 tokens is far smaller.
TEST(FineTune, WhatIsFrozenHasNoGradientInMemory) {
  constexpr int64_t kMatrix = 2 << 20;
  const ModelShape shape = wide_shape();
  TrainOptions full, last, lora;
  last.num_layers = 1;
  lora.fine_tune = FineTune::lora;
  lora.num_layers = -1;
  const Decoder plain(shape), adapted(shape, adapter_shape(adapter_config(lora, shape), shape, "test"));
  EXPECT_GT(peak_of_pass(plain, trained_tensors(full, plain)), 2 * kMatrix) << "the head's, at least";
  EXPECT_GT(peak_of_pass(plain, trained_tensors(last, plain)), 2 * kMatrix) << "two of an MLP's";
  EXPECT_LT(peak_of_pass(adapted, trained_tensors(lora, adapted)), kMatrix) << "not one";
}

TEST(FineTune, TheLastLayersAndWhatIsOutsideOfLayers) {
  const ModelShape shape = load_checkpoint(golden_model("qwen3-untied")).shape;
  TrainOptions options;
  options.fine_tune = FineTune::lora;
  options.num_layers = 1;
  EXPECT_THAT(*adapter_config(options, shape).layers, ElementsAre(2));
  options.lora.keys = {"q_proj", "embed_tokens"};
  const AdapterConfig named = adapter_config(options, shape);
  EXPECT_FALSE(named.layers);
  EXPECT_THAT(named.targets.list, ElementsAre("model.embed_tokens", "model.layers.2.self_attn.q_proj"));
  options.lora.rslora = true;
  options.lora.rank = 4;
  EXPECT_EQ(adapter_config(options, shape).alpha, 40.0);
  options.num_layers = 4;
  EXPECT_THROW(adapter_config(options, shape), Error);
}

TEST(FineTune, OfAWholeModelTheLastLayersAlone) {
  const Decoder decoder(load_checkpoint(golden_model("qwen3-untied")).shape);
  const auto names = [&](std::optional<int64_t> layers) {
    TrainOptions options;
    options.num_layers = layers;
    std::vector<std::string> found;
    for (const TensorShape& tensor : trained_tensors(options, decoder).of(decoder.layout())) {
      found.push_back(tensor.name);
    }
    return found;
  };
  ASSERT_EQ(decoder.shape().layers, 3);
  EXPECT_EQ(names({}).size(), decoder.layout().size());
  EXPECT_EQ(names(-1).size(), decoder.layout().size() - 3) << "embedding, final norm and head";
  EXPECT_THAT(names(-1), Each(StartsWith("model.layers.")));
  EXPECT_EQ(names(3), names(-1));
  EXPECT_EQ(names(1).size(), 11u);
  EXPECT_THAT(names(1), Each(StartsWith("model.layers.2.")));
  EXPECT_THROW(names(4), Error);
}

}  // namespace
}  // namespace trunkline
