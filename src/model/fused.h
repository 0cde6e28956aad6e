// Steps of the model that MLX's CPU backend makes of parts, with an exp that takes one number at a time: half of a
// training step. Here each is one pass over the data (base/vector_math.h) for f32 on the CPU; elsewhere it is MLX's
// own.
#pragma once

#include <mlx/mlx.h>

namespace trunkline {

namespace mx = mlx::core;

// Whether x is f32 and computed on the CPU.
bool fused_here(const mx::array& x);

// silu(gate) * up, of one shape.
mx::array swiglu(const mx::array& gate, const mx::array& up);

// softmax(x) over the last axis.
mx::array row_softmax(const mx::array& x);

// softmax(scale * scores) over the keys that each query sees: scores [..., L, S], S >= L, query i stands at position
// S - L + i and sees keys up to there; the others get 0. Where fused_here(scores) alone.
mx::array causal_softmax(const mx::array& scores, float scale);

// x [..., in] times the transpose of weight [out, in], plus bias [out] unless null. As mx::matmul, but the gradient of
// the weight is made in the weight's own layout, not transposed.
mx::array linear(const mx::array& x, const mx::array& weight, const mx::array* bias = nullptr);

}  // namespace trunkline
