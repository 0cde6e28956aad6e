// When the model may read what is gathered.
#include "train/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "bridge/arrays.h"
#include "comm/ranks_test.h"
#include "model/packed_model_test.h"
#include "train/fine_tune.h"

namespace trunkline {
namespace {

// Every trained tensor of the ranks' goes up by one; what `tensors` are then, all of it.
bool are_new(const Parameters& tensors, const Parameters& before, const std::vector<int>& which) {
  for (const int index : which) {
    const auto i = static_cast<size_t>(index);
    const mx::array expected = in_row_order(mx::add(before[i], mx::array(1.0f)));
    if (!mx::array_equal(tensors[i], expected).item<bool>()) return false;
  }
  return true;
}

// The embedding's part is awaited before the layers and the head's after them, whether layers have any or not.
TEST(ShardedWeights, AreAwaitedBeforeTheyAreRead) {
  for (const auto& keys :
       {std::vector<std::string>{"embed_tokens"}, {"lm_head", "embed_tokens"}, {"lm_head"}, {"lm_head", "q_proj"}}) {
    Checkpoint checkpoint = load_checkpoint(testing_model::golden_model("qwen3-untied"));
    TrainOptions options;
    options.fine_tune = FineTune::lora;
    options.lora.keys = keys;
    options.num_layers = -1;
    Adapter adapter = *adapter_to_train(options, checkpoint);
    mx::eval(checkpoint.tensors);  // by the thread that made them
    mx::eval(adapter.tensors);
    const Decoder decoder(checkpoint.shape, adapter.shape);
    const Trained trained = trained_tensors(options, decoder);
    const std::vector<int> embedding = decoder.embedding_layer().adapter_tensors();
    const std::vector<int> all(trained.tensors().begin(), trained.tensors().end());
    const auto errors = testing::run_threads(2, [&](Group& group) {
      Parameters tensors;
      for (const auto* some : {&checkpoint.tensors, &adapter.tensors}) {
        for (const mx::array& tensor : *some) tensors.push_back(own(mx::astype(tensor, mx::float32)));
      }
      Parameters before;
      for (const mx::array& tensor : tensors) before.push_back(own(mx::array(tensor)));
      const Shards shards(pieces_of(decoder, trained, 1000), decoder.layout(), group.rank(), group.size());
      ShardedWeights sharded(group, decoder, shards, tensors);
      for (mx::array& part : sharded.own()) part = own(mx::add(part, mx::array(1.0f)));
      sharded.changed();
      if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 0 has to wait
      sharded.start(tensors);
      sharded.wait_for(-1);
      EXPECT_TRUE(are_new(tensors, before, embedding)) << ::testing::PrintToString(keys);
      sharded.finish();
      EXPECT_TRUE(are_new(tensors, before, all)) << ::testing::PrintToString(keys);
    });
    for (const auto& error : errors) EXPECT_EQ(error.text, "");
  }
}

}  // namespace
}  // namespace trunkline
