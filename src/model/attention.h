// Causal attention with grouped queries.
#pragma once

#include <mlx/mlx.h>

namespace trunkline {

namespace mx = mlx::core;

// queries [B, H, L, D], keys and values [B, K, S, D], H a multiple of K, S >= L -> [B, H, L, D]. Query i stands at
// position S - L + i and sees keys up to there. Scores are scaled by 1 / sqrt(D).
mx::array causal_attention(const mx::array& queries, const mx::array& keys, const mx::array& values);

}  // namespace trunkline
