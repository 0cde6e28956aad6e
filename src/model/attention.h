// Causal attention with grouped queries: whole, and in blocks of queries with a backward pass that makes the scores
// again, so that no more than one block's scores ever exist, unless weights are kept where there is room for them.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <vector>

#include "model/parts.h"

namespace trunkline {

namespace mx = mlx::core;

// Whether the scores of a training step's attention exist, a block of queries at a time: no where the device's kernels
// make none, forwards and back (cuDNN's, for 16 bits).
bool attention_makes_scores(mx::Dtype dtype, int head_dim);

// Which keys the queries of B sequences of L tokens see: those from first[b * L + i] up to the query's own place i.
// Along a sequence `first` never falls. Empty: every query sees from 0 on.
struct AttentionMask {
  std::vector<int32_t> first;

  // Rows packed one after another see nothing of each other. `segments` has, for each token of B sequences of `tokens`,
  // the number of its row; a row's tokens stand together.
  static AttentionMask packed(const std::vector<int32_t>& segments, int tokens);
  // Each query sees `window` keys, its own among them, of what this mask shows of B sequences of `tokens`.
  AttentionMask windowed(int sequences, int tokens, int window) const;
};

// queries [B, H, L, D], keys and values [B, K, S, D], H a multiple of K, S >= L -> [B, H, L, D]. Query i stands at
// position S - L + i and sees keys up to there, from where `mask` says. Scores are scaled by 1 / sqrt(D).
mx::array causal_attention(const mx::array& queries, const mx::array& keys, const mx::array& values,
                           const AttentionMask& mask = {});

struct AttentionGradients {
  mx::array queries, keys, values;
};

// As causal_attention where L = S, in blocks of `block` queries against the keys that any of them sees, each queued
// with `pacer`; all at once where a kernel of the device makes no scores. `weights`, unless null, is given each block's
// weights of the keys, if these are made at all.
mx::array attention_in_blocks(const mx::array& queries, const mx::array& keys, const mx::array& values,
                              const AttentionMask& mask, int block, Pacer& pacer,
                              std::vector<mx::array>* weights = nullptr);

// Its gradients for the cotangent d [B, H, L, D], in f32 where a key's is a sum over blocks. `dots` [B, H, L, 1] f32:
// sums of d times the result, along D. `weights`: as attention_in_blocks gave them for the same blocks, each let go of
// when it has been used; made again if empty.
AttentionGradients attention_gradients_in_blocks(const mx::array& queries, const mx::array& keys,
                                                 const mx::array& values, const mx::array& d, const mx::array& dots,
                                                 const AttentionMask& mask, int block, Pacer& pacer,
                                                 std::vector<mx::array> weights = {});
// The dots of some tokens' results and cotangents; zeros where they are not looked at (fused_here).
mx::array attention_dots(const mx::array& result, const mx::array& d);

}  // namespace trunkline
