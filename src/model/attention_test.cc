#include "model/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/parts.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

mx::array normal(const mx::Shape& shape, uint64_t seed) {
  return mx::random::normal(shape, mx::float32, mx::random::key(seed));
}

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(a - b)).item<float>(); }

struct Sizes {
  int rows, heads, key_heads, tokens, head_dim;
};

struct Input {
  mx::array queries, keys, values, d;
  explicit Input(const Sizes& s)
      : queries(normal({s.rows, s.heads, s.tokens, s.head_dim}, 1)),
        keys(normal({s.rows, s.key_heads, s.tokens, s.head_dim}, 2)),
        values(normal({s.rows, s.key_heads, s.tokens, s.head_dim}, 3)),
        // Not contiguous, as the gradient of a transposition is.
        d(mx::transpose(normal({s.rows, s.tokens, s.heads, s.head_dim}, 4), {0, 2, 1, 3})) {}
};

AttentionGradients gradients_in_blocks(const mx::array& queries, const mx::array& keys, const mx::array& values,
                                       const mx::array& d, const AttentionMask& mask, int block, Pacer& pacer) {
  Pacer own;
  const mx::array mixed = attention_in_blocks(queries, keys, values, mask, block, own);
  return attention_gradients_in_blocks(queries, keys, values, d, attention_dots(mixed, d), mask, block, pacer);
}

// The whole matrix of scores, from the definition: heads repeated, the mask an array.
mx::array by_definition(const Arrays& in, const AttentionMask& mask) {
  const mx::array &q = in[0], &k = in[1], &v = in[2];
  const int rows = q.shape(0), tokens = q.shape(2), group = q.shape(1) / k.shape(1);
  std::vector<float> hidden;
  for (int b = 0; b < rows; ++b) {
    for (int i = 0; i < tokens; ++i) {
      const int first = mask.first.empty() ? 0 : mask.first[static_cast<size_t>(b * tokens + i)];
      for (int j = 0; j < tokens; ++j) hidden.push_back(j >= first && j <= i ? 0.0f : -1e30f);
    }
  }
  const mx::array keys = mx::repeat(k, group, 1), values = mx::repeat(v, group, 1);
  const mx::array scores =
      mx::matmul(q, mx::swapaxes(keys, -1, -2)) / mx::array(std::sqrt(static_cast<float>(q.shape(3)))) +
      mx::array(hidden.begin(), {rows, 1, tokens, tokens});
  return mx::matmul(mx::softmax(scores, -1), values);
}

void expect_by_definition(const Sizes& sizes, const AttentionMask& mask) {
  const Input in(sizes);
  const auto function = [&](const Arrays& a) { return Arrays{by_definition(a, mask)}; };
  const auto [value, gradients] = mx::vjp(function, {in.queries, in.keys, in.values}, {in.d});
  const std::vector<int> blocks = {1, 2, 3, 5, 7, 8, 16, sizes.tokens - 1, sizes.tokens, sizes.tokens + 9};
  for (const int block : blocks) {
    if (block < 1) continue;
    SCOPED_TRACE(block);
    int done = 0;
    const auto count = [&] { ++done; };
    Pacer pacer(count);
    const mx::array mixed = attention_in_blocks(in.queries, in.keys, in.values, mask, block, pacer);
    EXPECT_EQ(done, (sizes.tokens + block - 1) / block);
    EXPECT_EQ(mixed.shape(), in.queries.shape());
    EXPECT_LT(furthest(mixed, value[0]), 2e-6);
    const AttentionGradients mine = gradients_in_blocks(in.queries, in.keys, in.values, in.d, mask, block, pacer);
    EXPECT_LT(furthest(mine.queries, gradients[0]), 5e-6);
    EXPECT_LT(furthest(mine.keys, gradients[1]), 5e-6);
    EXPECT_LT(furthest(mine.values, gradients[2]), 5e-6);
  }
}

const std::vector<Sizes> kSizes = {
    {1, 4, 4, 17, 8}, {2, 6, 2, 23, 8}, {3, 3, 1, 16, 4}, {1, 8, 2, 33, 16}, {2, 2, 1, 1, 8}};

TEST(AttentionInBlocks, CausalIsTheWholeMatrixs) {
  for (const Sizes& sizes : kSizes) expect_by_definition(sizes, {});
}

TEST(AttentionInBlocks, PackedRowsSeeNothingOfEachOther) {
  for (const Sizes& sizes : kSizes) {
    std::vector<int32_t> segments;
    for (int b = 0; b < sizes.rows; ++b) {
      for (int i = 0; i < sizes.tokens; ++i) segments.push_back(i < 3 + b ? 0 : i < 11 ? 1 : 2);
    }
    const AttentionMask mask = AttentionMask::packed(segments, sizes.tokens);
    expect_by_definition(sizes, mask);
    expect_by_definition(sizes, mask.windowed(sizes.rows, sizes.tokens, 4));
  }
  // A row that ends as the next sequence begins with the same number.
  EXPECT_EQ(AttentionMask::packed({5, 5, 5, 5, 6, 6}, 3).first, (std::vector<int32_t>{0, 0, 0, 0, 1, 1}));
}

// Each packed row alone gives the same bits' worth of values.
TEST(AttentionInBlocks, APackedRowIsTheRowAlone) {
  const Input in({1, 4, 2, 20, 8});
  const std::vector<int> lengths = {7, 1, 12};
  std::vector<int32_t> segments;
  for (size_t s = 0; s < lengths.size(); ++s)
    segments.insert(segments.end(), static_cast<size_t>(lengths[s]), static_cast<int32_t>(s));
  const AttentionMask mask = AttentionMask::packed(segments, 20);
  Pacer pacer;
  const mx::array mixed = attention_in_blocks(in.queries, in.keys, in.values, mask, 6, pacer);
  const AttentionGradients all = gradients_in_blocks(in.queries, in.keys, in.values, in.d, mask, 6, pacer);
  int at = 0;
  for (const int length : lengths) {
    const auto row = [&](const mx::array& x) { return part(x, 2, at, at + length); };
    EXPECT_LT(furthest(row(mixed), attention_in_blocks(row(in.queries), row(in.keys), row(in.values), {}, 5, pacer)),
              1e-6);
    const AttentionGradients alone =
        gradients_in_blocks(row(in.queries), row(in.keys), row(in.values), row(in.d), {}, 5, pacer);
    EXPECT_LT(furthest(row(all.queries), alone.queries), 2e-6);
    EXPECT_LT(furthest(row(all.keys), alone.keys), 2e-6);
    EXPECT_LT(furthest(row(all.values), alone.values), 2e-6);
    at += length;
  }
}

TEST(AttentionInBlocks, AWindowShowsSoManyKeys) {
  for (const Sizes& sizes : kSizes) {
    for (const int window : {1, 3, 100}) {
      const AttentionMask mask = AttentionMask{}.windowed(sizes.rows, sizes.tokens, window);
      expect_by_definition(sizes, mask);
    }
  }
}

// In 16 bits: near f32, sums over blocks in f32.
TEST(AttentionInBlocks, InTheDtypeOfItsInputs) {
  const Input in({1, 4, 2, 40, 8});
  Pacer pacer;
  const auto half = [](const mx::array& x) { return mx::astype(x, mx::bfloat16); };
  const AttentionGradients exact = gradients_in_blocks(in.queries, in.keys, in.values, in.d, {}, 7, pacer);
  const AttentionGradients rough =
      gradients_in_blocks(half(in.queries), half(in.keys), half(in.values), half(in.d), {}, 7, pacer);
  for (const auto& [a, b] :
       {std::pair(exact.queries, rough.queries), {exact.keys, rough.keys}, {exact.values, rough.values}}) {
    EXPECT_EQ(b.dtype(), mx::bfloat16);
    EXPECT_LT(furthest(a, mx::astype(b, mx::float32)), 0.05 * mx::max(mx::abs(a)).item<float>());
  }
}

// The scores of a sequence never exist: memory beyond the inputs and outputs stays near two blocks'.
TEST(AttentionInBlocks, MemoryIsThatOfABlock) {
  const Sizes sizes{1, 4, 2, 1024, 8};
  const Input in(sizes);
  mx::array d = mx::contiguous(in.d);
  mx::eval(in.queries, in.keys, in.values, d);
  const size_t before = mx::get_active_memory(), whole = size_t{4} * 4 * 1024 * 1024;  // bytes of all scores
  mx::reset_peak_memory();
  Pacer pacer;
  const mx::array dots = mx::zeros({1, 4, 1024, 1});
  const AttentionGradients gradients =
      attention_gradients_in_blocks(in.queries, in.keys, in.values, d, dots, {}, 64, pacer);
  mx::eval(gradients.queries, gradients.keys, gradients.values);
  EXPECT_LT(mx::get_peak_memory() - before, whole / 2);  // a block's is 1/16, and some of two exist at once
  EXPECT_EQ(gradients.keys.shape(), in.keys.shape());
}

TEST(Parts, CoverEverything) {
  for (const int total : {0, 1, 5, 6, 7}) {
    for (const int block : {1, 2, 3, 7, 100}) {
      int at = 0;
      for (const auto& [begin, end] : parts_of(total, block)) {
        EXPECT_EQ(begin, at);
        EXPECT_LE(end - begin, block);
        EXPECT_GT(end, begin);
        at = end;
      }
      EXPECT_EQ(at, total);
    }
  }
}

}  // namespace
}  // namespace trunkline
