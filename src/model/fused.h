// Steps of the model that MLX makes of parts, each a pass over the data: half of a training step and more. Here each is
// one pass: for f32 on the CPU with base/vector_math.h, on a GPU with MLX's compiler; 16-bit types are computed in f32.
// For 16 bits on the CPU, where speed is nothing to hope for, they stay MLX's own operations.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace trunkline {

namespace mx = mlx::core;

// Whether x is f32 and computed on the CPU.
bool fused_here(const mx::array& x);

// Operations without a reduction, as one pass where a GPU computes, if what they give are single results or share
// nothing. Called with the same `function` again, nothing is compiled again; with few shapes, MLX plans for each, and
// takes longer chains of operations into a pass.
enum class Shapes { any, few };
std::vector<mx::array> one_pass(std::vector<mx::array> (*function)(const std::vector<mx::array>&),
                                const std::vector<mx::array>& inputs, Shapes shapes = Shapes::any);

// exp(x - y)
mx::array exp_of_difference(const mx::array& x, const mx::array& y);

// silu(gate) * up, of one shape.
mx::array swiglu(const mx::array& gate, const mx::array& up);
// What gate and up are owed, from the cotangent d of that. Where a gradient is made outside of mx::vjp, it is one pass:
// MLX compiles nothing that it traces.
std::vector<mx::array> swiglu_gradients(const mx::array& gate, const mx::array& up, const mx::array& d);

// sum + x in the f32 of `sum`, in its memory if nobody else needs it, and with no other copy of x.
mx::array add_in_f32(mx::array sum, const mx::array& x);

// softmax(x) over the last axis.
mx::array row_softmax(const mx::array& x);
// That and log(sum(exp(x))) of each row [..., 1], f32; no gradient goes through them.
std::pair<mx::array, mx::array> row_softmax_and_log_sums(const mx::array& x);

// softmax(scale * scores) over the keys that each query sees: scores [B, ..., L, S], S >= L; query i stands at position
// S - L + i and sees keys up to there, from first[b * L + i] on, or from 0 if `first` is empty; the others get 0.
mx::array causal_softmax(const mx::array& scores, float scale, const std::vector<int32_t>& first = {});

// What the scores are owed, from causal_softmax's result p, the cotangent dp of that, and each row's sum of their
// products, f32 [B, ..., L, 1] (not looked at where fused_here).
mx::array causal_softmax_gradient(const mx::array& p, const mx::array& dp, const mx::array& sums, float scale,
                                  const std::vector<int32_t>& first = {});

// The same keys as a mask of booleans that broadcasts to `scores` (a shape).
mx::array seen_keys(const mx::Shape& scores, const std::vector<int32_t>& first);

// x [..., in] times the transpose of weight [out, in], plus bias [out] unless null. As mx::matmul, but the gradient of
// the weight is made in the weight's own layout, not transposed.
mx::array linear(const mx::array& x, const mx::array& weight, const mx::array* bias = nullptr);

}  // namespace trunkline
