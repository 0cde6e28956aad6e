// Steps of the model that MLX's CPU backend makes of parts, with an exp that takes one number at a time: half of a
// training step. Here each is one pass over the data (base/vector_math.h) for f32 on the CPU; elsewhere it is MLX's
// own.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <vector>

namespace trunkline {

namespace mx = mlx::core;

// Whether x is f32 and computed on the CPU.
bool fused_here(const mx::array& x);

// silu(gate) * up, of one shape.
mx::array swiglu(const mx::array& gate, const mx::array& up);

// softmax(x) over the last axis.
mx::array row_softmax(const mx::array& x);

// softmax(scale * scores) over the keys that each query sees: scores [B, ..., L, S], S >= L; query i stands at position
// S - L + i and sees keys up to there, from first[b * L + i] on, or from 0 if `first` is empty; the others get 0.
mx::array causal_softmax(const mx::array& scores, float scale, const std::vector<int32_t>& first = {});

// What the scores are owed, from causal_softmax's result p and the cotangent of that.
mx::array causal_softmax_gradient(const mx::array& p, const mx::array& dp, float scale,
                                  const std::vector<int32_t>& first = {});

// The same keys as a mask of booleans that broadcasts to `scores` (a shape).
mx::array seen_keys(const mx::Shape& scores, const std::vector<int32_t>& first);

// x [..., in] times the transpose of weight [out, in], plus bias [out] unless null. As mx::matmul, but the gradient of
// the weight is made in the weight's own layout, not transposed.
mx::array linear(const mx::array& x, const mx::array& weight, const mx::array* bias = nullptr);

}  // namespace trunkline
