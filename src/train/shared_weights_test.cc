// Weights that two ranks share: who has them, and what becomes of them in snapshots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "bridge/arrays.h"
#include "comm/ranks_test.h"
#include "model/packed_model_test.h"
#include "train/clip.h"
#include "train/run_snapshots.h"
#include "train/run_weights.h"

namespace trunkline {
namespace {

using ::testing::HasSubstr;

class SharedWeights : public ::testing::Test {
 protected:
  SharedWeights() : checkpoint_(load_checkpoint(testing_model::golden_model("qwen3-untied"))) {
    mx::eval(checkpoint_.tensors);  // by the thread that made them
  }

  RunWeights weights(Group& group, const Decoder& decoder) const {
    Parameters parameters;
    for (const mx::array& tensor : checkpoint_.tensors) parameters.push_back(own(mx::astype(tensor, mx::float32)));
    return {group, decoder, Trained::all(parameters.size()), std::move(parameters)};
  }
  RunSnapshots snapshots(Group& group, const Decoder& decoder) const {
    return {group, folder_ / "out", decoder.layout(), 9, /* keeps_best = */ true};
  }

  Checkpoint checkpoint_;
  testing_model::TestFolder folder_;
};

bool equal(const Parameters& a, const Parameters& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].dtype() != b[i].dtype() || !mx::array_equal(a[i], b[i]).item<bool>()) return false;
  }
  return true;
}

TEST_F(SharedWeights, AreRankZerosAloneInFull) {
  for (const Dtype dtype : {Dtype::f32, Dtype::bf16}) {
    const auto errors = testing::run_threads(2, [&](Group& group) {
      const Decoder decoder(checkpoint_.shape);
      RunWeights shared = weights(group, decoder);
      shared.begin({.optimizer = {}, .dtype = dtype, .masters = dtype != Dtype::f32, .shared = true});
      shared.share(1000);
      const Parameters computed_with = shared.parameters(), all = shared.trained_weights();
      if (group.rank() == 0) {
        EXPECT_TRUE(equal(all, weights(group, decoder).parameters()));
      } else {
        EXPECT_TRUE(all.empty());
      }
      shared.end();
      shared.compute_with(all);
      EXPECT_TRUE(equal(shared.parameters(), computed_with));
    });
    for (const auto& error : errors) EXPECT_EQ(error.text, "");
  }
}

TEST_F(SharedWeights, ComeBackAsTheyWereAtTheBest) {
  const auto errors = testing::run_threads(2, [&](Group& group) {
    const Decoder decoder(checkpoint_.shape);
    RunWeights shared = weights(group, decoder);
    shared.begin({.optimizer = {}, .dtype = Dtype::bf16, .masters = true, .shared = true});
    shared.share(1000);
    RunSnapshots runs = snapshots(group, decoder);
    RunState state;
    state.step = 3;
    state.best.take(3, 0.5, 0.0);
    runs.save(state, 1, {}, shared);
    for (mx::array& part : shared.sharded()->own()) part = own(mx::add(part, mx::array(1.0f)));
    Parameters best = shared.trained_weights();
    runs.load_best(best);
    EXPECT_TRUE(equal(best, weights(group, decoder).parameters())) << "on rank " << group.rank();
  });
  for (const auto& error : errors) EXPECT_EQ(error.text, "");
}

// A rank's part that is no number ends all ranks with the same words, and saves nothing.
TEST_F(SharedWeights, ThatAreNotFiniteEndAllRanks) {
  for (const int poisoned : {0, 1}) {
    const auto errors = testing::run_threads(2, [&](Group& group) {
      const Decoder decoder(checkpoint_.shape);
      RunWeights shared = weights(group, decoder);
      shared.begin({.optimizer = {}, .dtype = Dtype::bf16, .masters = true, .shared = true});
      shared.share(1000);
      ASSERT_FALSE(shared.shards()->parts().front().everyones);
      mx::array& part = shared.sharded()->own().front();
      if (group.rank() == poisoned) part = own(mx::multiply(part, mx::array(std::numeric_limits<float>::infinity())));
      RunState state;
      state.step = 3;
      snapshots(group, decoder).save(state, 1, {}, shared);
    });
    EXPECT_EQ(errors[0].kind, ErrorKind::numeric);
    EXPECT_EQ(errors[1].kind, ErrorKind::peer);
    for (const auto& error : errors)
      EXPECT_THAT(error.text, HasSubstr("step 3: the update made lm_head.weight infinite"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / "out/checkpoints/3"));
  }
}

}  // namespace
}  // namespace trunkline
