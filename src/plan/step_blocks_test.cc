#include "plan/step_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "plan/least_limit.h"

namespace trunkline {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

ModelShape qwen3_8b() {
  ModelShape s;
  s.family = Family::qwen3;
  s.hidden = 4096;
  s.intermediate = 12288;
  s.layers = 36;
  s.heads = 32;
  s.kv_heads = 8;
  s.head_dim = 128;
  s.vocab = 151936;
  s.qk_norm = true;
  return s;
}

constexpr StepSize kLong{.rows = 1, .tokens = 17408, .targets = 17407, .state_width = 0, .pieces_on_their_way = 0};

TEST(StepBlocks, AnEightBillionModelAtLongLengthFits) {
  ASSERT_EQ(qwen3_8b().parameters(), 8190735360);
  const StepBlocks blocks = choose_blocks(qwen3_8b(), kLong, 44 * kGiB);
  const StepMemory memory = step_memory(qwen3_8b(), kLong, blocks);
  EXPECT_LT(blocks.vocab_rows, qwen3_8b().vocab) << "the head's gradient is not whole";
  EXPECT_EQ(blocks.keep_products, 0);
  EXPECT_GT(memory.total(), memory.weights + memory.inputs);
  EXPECT_LE(memory.total(), 44 * kGiB);
}

// Where blocks wait for memory: the same step in 16 bits, in the memory that a half of it would be.
TEST(StepBlocks, InSixteenBitsItFitsHalf) {
  StepSize size = kLong;
  size.width = 2;
  size.makes_scores = false;
  size.blocks_at_once = 1;
  const StepBlocks blocks = choose_blocks(qwen3_8b(), size, 22 * kGiB);
  const StepMemory memory = step_memory(qwen3_8b(), size, blocks);
  EXPECT_LE(memory.total(), 22 * kGiB);
  EXPECT_GE(blocks.tokens, 1024) << "small blocks are slow";
  EXPECT_LT(memory.gradients, int64_t{4} * 200'000'000) << "half a layer's";
}

// The head's gradient is whole only where all is kept; then few blocks add to it.
TEST(StepBlocks, MemoryKeepsMoreBeforeItHoldsTheHeadsGradient) {
  StepSize size{.rows = 1, .tokens = 2048, .targets = 2047, .state_width = 0, .pieces_on_their_way = 0};
  size.blocks_at_once = 1;
  const StepBlocks little = choose_blocks(qwen3_8b(), size, 40 * kGiB),
                   much = choose_blocks(qwen3_8b(), size, 80 * kGiB);
  EXPECT_LT(little.vocab_rows, qwen3_8b().vocab);
  EXPECT_GT(little.keep_products, 18);
  EXPECT_EQ(much.vocab_rows, qwen3_8b().vocab);
  EXPECT_EQ(much.keep_products, 36);
  EXPECT_EQ(much.logits, 2047);
  size.width = 2;
  size.makes_scores = false;
  const StepBlocks half = choose_blocks(qwen3_8b(), size, 18 * kGiB + kGiB / 2);
  EXPECT_EQ(half.tokens, 2048) << "takes less memory than two blocks, whose gradients are added in f32";
  EXPECT_GE(half.logits, 200);
}

TEST(StepBlocks, MoreMemoryNeverKeepsLess) {
  const ModelShape shape = qwen3_8b();
  int64_t all = 0, products = 0, rows = 0;
  for (int64_t limit = 30; limit <= 1400; limit += 10) {
    const StepBlocks blocks = choose_blocks(shape, kLong, limit * kGiB);
    EXPECT_GE(blocks.keep_all, all);
    EXPECT_GE(blocks.keep_all + blocks.keep_products, products);
    EXPECT_GE(blocks.vocab_rows, rows);
    EXPECT_LE(blocks.keep_all + blocks.keep_products + blocks.keep_attention, shape.layers);
    all = blocks.keep_all;
    products = all + blocks.keep_products;
    rows = blocks.vocab_rows;
    EXPECT_TRUE(all == 0 || products == shape.layers) << "products save more for what they take";
    if (limit >= 60) {
      EXPECT_LE(step_memory(shape, kLong, blocks).total(), limit * kGiB);
    }
  }
  EXPECT_EQ(all, shape.layers);
  EXPECT_EQ(rows, shape.vocab);
}

// Attention's weights of each query for the keys that its block sees, and what the MLP's last product is made of.
TEST(StepBlocks, KeepingAllTakesWhatItKeeps) {
  const ModelShape shape = qwen3_8b();
  StepSize size{.rows = 2, .tokens = 10, .targets = 9};
  StepBlocks blocks{.queries = 4, .tokens = 10, .logits = 9, .vocab_rows = shape.vocab, .keep_products = 3};
  const int64_t products = step_memory(shape, size, blocks).kept;
  std::swap(blocks.keep_all, blocks.keep_products);
  const int64_t weights = 32 * (4 * 4 + 4 * 8 + 2 * 10), active = 10 * 12288;
  EXPECT_EQ(step_memory(shape, size, blocks).kept - products, int64_t{3} * 2 * 4 * (weights + active));
  size.makes_scores = false;
  EXPECT_EQ(step_memory(shape, size, blocks).kept - products, int64_t{3} * 2 * 4 * active);
}

// A block that is left over costs more than its share.
TEST(StepBlocks, BlocksAreOfAboutOneSize) {
  const StepSize size{.rows = 1, .tokens = 600, .targets = 700};
  ModelShape shape = qwen3_8b();
  shape.layers = 2;
  shape.hidden = 64;
  shape.vocab = 49152;
  const StepBlocks blocks = choose_blocks(shape, size, 16 * kGiB);
  EXPECT_EQ(blocks.logits, 352) << "682 fit";
  EXPECT_EQ(blocks.tokens, 304) << "546 fit";
  shape.heads = 14;
  const StepSize longer{.rows = 1, .tokens = 4096, .targets = 4095};
  EXPECT_EQ(choose_blocks(shape, longer, 24 * kGiB).queries, 832) << "877 fit, a quarter of the row is wanted";
}

// A second pass over the head's logits costs about what nine of these layers do.
TEST(StepBlocks, TheHeadIsWholeOnlyWhereLayersDoNotPayForIt) {
  ModelShape shape = qwen3_8b();
  shape.hidden = 896;
  shape.intermediate = 4864;
  shape.layers = 24;
  shape.heads = 14;
  shape.kv_heads = 2;
  shape.head_dim = 64;
  shape.tied = true;
  const StepSize size{.rows = 4, .tokens = 256, .targets = 1020};
  int64_t kept = 0;
  for (int64_t tenths = 60; tenths <= 120; ++tenths) {
    const StepBlocks blocks = choose_blocks(shape, size, tenths * kGiB / 10);
    const int64_t now = blocks.keep_all + blocks.keep_products;
    // Fewer kept than with less memory: then what is spared at the head is more.
    const int64_t layer = (shape.parameters() - shape.vocab * shape.hidden) / shape.layers;
    EXPECT_LT(std::max<int64_t>(0, (kept - now) * layer), shape.vocab * shape.hidden) << tenths;
    kept = now;
  }
  EXPECT_EQ(kept, shape.layers);
}

TEST(StepBlocks, WhatIsAskedForIsTaken) {
  const StepBlocks asked{.queries = 3, .tokens = 5, .logits = 7, .vocab_rows = 11};
  StepBlocks blocks = choose_blocks(qwen3_8b(), kLong, 400 * kGiB, asked, Recompute::all);
  EXPECT_EQ(blocks, asked);
  blocks = choose_blocks(qwen3_8b(), kLong, 0, {}, Recompute::none);
  EXPECT_EQ(blocks.keep_all, qwen3_8b().layers);
}

TEST(StepBlocks, ShortRowsAreOneBlock) {
  const StepSize size{.rows = 2, .tokens = 64, .targets = 100, .state_width = 8};
  const StepBlocks blocks = choose_blocks(qwen3_8b(), size, 400 * kGiB);
  EXPECT_EQ(blocks.queries, 64);
  EXPECT_EQ(blocks.tokens, 64);
  EXPECT_EQ(blocks.logits, 100);
  EXPECT_EQ(blocks.keep_all, 36);
}

TEST(StepBlocks, TheLeastLimitFitsAndLessDoesNot) {
  const ModelShape shape = qwen3_8b();
  for (const int64_t at_once : {1, 2}) {
    for (const int64_t tokens : {7, 2048, 17408}) {
      const StepSize size{.rows = 1, .tokens = tokens, .targets = tokens, .blocks_at_once = at_once};
      const int64_t least = least_limit(shape, size);
      EXPECT_LE(step_memory(shape, size, choose_blocks(shape, size, least)).total(), least);
      const int64_t less = least - least / 50;
      EXPECT_GT(step_memory(shape, size, choose_blocks(shape, size, less)).total(), less);
    }
  }
  EXPECT_EQ(memory_text(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(memory_text(int64_t{5} << 20), "5.0 MiB");
}

// Nothing fits in nothing: every block still has at least one of each.
TEST(StepBlocks, TheSmallestStepIsAStep) {
  const StepSize size{.rows = 1, .tokens = 1, .targets = 0, .state_width = 8};
  const StepBlocks blocks = choose_blocks(qwen3_8b(), size, 0);
  EXPECT_EQ(blocks.queries, 1);
  EXPECT_EQ(blocks.tokens, 1);
  EXPECT_EQ(blocks.logits, 1);
  EXPECT_GE(blocks.vocab_rows, 1);
}

// Where the last layers alone are trained: their gradients, their inputs, and a head that is not.
TEST(StepBlocks, WhatIsFrozenTakesItsWeightsAlone) {
  const ModelShape shape = qwen3_8b();
  const int64_t mlp = 3 * shape.hidden * shape.intermediate + shape.hidden;
  StepSize size = kLong;
  size.part = {.parameters = 4 * 192'946'432,
               .weight_bytes = 4 * shape.parameters(),
               .layers = 4,
               .mlp = mlp,
               .attention = 192'946'432 - mlp};
  const StepBlocks blocks = choose_blocks(shape, size, 44 * kGiB);
  const StepMemory memory = step_memory(shape, size, blocks), all = step_memory(shape, kLong, blocks);
  EXPECT_EQ(memory.inputs, int64_t{4} * 17408 * 4096 * 4);
  EXPECT_EQ(memory.gradients, 4 * mlp) << "of half a layer";
  EXPECT_EQ(memory.weights, all.weights);
  EXPECT_LT(memory.total(), all.total());
  EXPECT_GT(blocks.keep_products, 0) << "what is saved is used";
}

TEST(StepBlocks, GradientsThatAreHeldOrOnTheirWayAreCounted) {
  const ModelShape shape = qwen3_8b();
  StepSize size = kLong;
  const StepBlocks blocks{.queries = 128, .tokens = 1024, .logits = 256, .vocab_rows = 8192};
  const int64_t mlp = 4 * (3 * shape.hidden * shape.intermediate + shape.hidden);
  EXPECT_EQ(step_memory(shape, size, blocks).gradients, mlp);
  size.pieces_on_their_way = 2;
  EXPECT_EQ(step_memory(shape, size, blocks).gradients, 3 * mlp);
  StepBlocks whole = blocks;
  whole.vocab_rows = shape.vocab;
  EXPECT_EQ(step_memory(shape, size, whole).gradients, 2 * mlp + 4 * shape.vocab * shape.hidden)
      << "the head's is the first on its way";
  size.holds_gradients = true;
  EXPECT_EQ(step_memory(shape, size, blocks).gradients, 4 * shape.parameters());
  // Of what is worked on, the half with more of it counts then, whatever its gradients.
  size.width = 2;
  size.makes_scores = false;
  size.blocks_at_once = 1;
  const int64_t held = step_memory(shape, size, blocks).blocks;
  size.holds_gradients = false;
  size.pieces_on_their_way = 0;
  EXPECT_GE(held, step_memory(shape, size, blocks).blocks);
}

// All but a layer or two kept: a second pass over the logits would cost more than these do.
TEST(StepBlocks, TheHeadIsSlicedOnlyWhereThatSavesWork) {
  ModelShape shape = qwen3_8b();
  shape.layers = 30;
  shape.hidden = 576;
  shape.intermediate = 1536;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.vocab = 49152;
  shape.tied = true;
  const StepSize size{.rows = 1, .tokens = 8192, .targets = 8191};
  int64_t limit = 50 * kGiB;
  const auto products = [](const StepBlocks& blocks) { return blocks.keep_all + blocks.keep_products; };
  ASSERT_EQ(products(choose_blocks(shape, size, limit)), 30);
  StepBlocks blocks;
  do {
    limit -= kGiB / 4;
    blocks = choose_blocks(shape, size, limit);
  } while (products(blocks) == 30);
  EXPECT_GE(products(blocks), 28);
  EXPECT_EQ(blocks.vocab_rows, shape.vocab);
}

}  // namespace
}  // namespace trunkline
