#include "model/decoder.h"

#include <gtest/gtest.h>

#include "model/golden_model_test.h"

namespace trunkline {
namespace {

using namespace testing_model;

constexpr const char* kModels[] = {"llama-smol", "llama3-rope", "qwen2-bias", "qwen3-untied", "qwen3-yarn"};

mx::array random_ids(int rows, int tokens, uint64_t seed) {
  return mx::astype(mx::random::randint(3, 131, {rows, tokens}, mx::int32, mx::random::key(seed)), mx::int32);
}

mx::array columns(const mx::array& x, int from, int to) { return mx::slice(x, {0, from}, {x.shape(0), to}); }

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(a - b)).item<float>(); }

TEST(Decoder, ACacheChangesNothing) {
  for (const char* name : kModels) {
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const mx::array ids = random_ids(2, 40, 1);
    const mx::array whole = decoder.logits(checkpoint.tensors, ids);
    KeyValueCache cache;
    std::vector<mx::array> parts;
    int at = 0;
    for (int tokens : {17, 1, 1, 6, 1, 14}) {
      parts.push_back(decoder.logits(checkpoint.tensors, columns(ids, at, at + tokens), &cache));
      at += tokens;
      EXPECT_EQ(cache.length, at);
    }
    EXPECT_LT(furthest(mx::concatenate(parts, 1), whole), 1e-5) << name;
  }
}

TEST(Decoder, SeesNoLaterTokensAndNoOtherRows) {
  for (const char* name : kModels) {
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const mx::array ids = random_ids(3, 25, 2);
    const mx::array all = decoder.logits(checkpoint.tensors, ids);
    const mx::array first = mx::slice(ids, {0, 0}, {1, 12});
    const mx::array alone = decoder.logits(checkpoint.tensors, first);
    EXPECT_LT(furthest(alone, mx::slice(all, {0, 0, 0}, alone.shape())), 1e-5) << name;
  }
}

TEST(Decoder, PiecesMakeTheWhole) {
  const Checkpoint checkpoint = load_checkpoint(golden_model("qwen3-tied"));
  const Decoder decoder(checkpoint.shape);
  const mx::array ids = random_ids(1, 9, 3);
  mx::array x = decoder.embed(checkpoint.tensors, ids);
  const RopeTable rope = decoder.rope_table(mx::arange(x.shape(1), mx::int32), x.dtype());
  for (int64_t i = 0; i < checkpoint.shape.layers; ++i) x = decoder.layer(checkpoint.tensors, i, x, rope);
  x = decoder.norm(checkpoint.tensors, x);
  EXPECT_EQ(furthest(x, decoder.hidden(checkpoint.tensors, ids)), 0.0);
  EXPECT_EQ(x.shape(), (mx::Shape{1, 9, static_cast<int>(checkpoint.shape.hidden)}));
  EXPECT_TRUE(same_bits(decoder.head_weight(checkpoint.tensors), checkpoint.tensors.front())) << "tied";
}

// 16-bit weights compute in their dtype, near the f32 result.
TEST(Decoder, ComputesInTheDtypeOfItsWeights) {
  const Checkpoint checkpoint = load_checkpoint(golden_model("llama3-rope"));
  const Decoder decoder(checkpoint.shape);
  const mx::array ids = random_ids(1, 90, 4);
  const mx::array exact = decoder.logits(checkpoint.tensors, ids);
  for (const mx::Dtype dtype : {mx::float16, mx::bfloat16}) {
    const mx::array rough = decoder.logits(cast(checkpoint.tensors, dtype), ids);
    EXPECT_EQ(rough.dtype(), dtype);
    EXPECT_LT(furthest(mx::astype(rough, mx::float32), exact), dtype == mx::float16 ? 0.01 : 0.08);
  }
}

}  // namespace
}  // namespace trunkline
