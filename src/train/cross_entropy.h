// The head's loss without the logits of a whole sequence. x [T, C] are hidden states after the final norm, the head is
// [V, C], and a target is the id to predict. Sums are over the T targets; gradients are those of that sum.
#pragma once

#include <mlx/mlx.h>

#include <functional>
#include <optional>
#include <vector>

namespace trunkline {

namespace mx = mlx::core;

// Cross entropy of x under the head (f32 scalar). Logits exist for one chunk of tokens at a time, in the backward pass
// too.
mx::array summed_cross_entropy(const mx::array& x, const mx::array& head, const mx::array& targets);

// The same value where no gradient will be asked for: cheaper.
mx::array summed_cross_entropy_value(const mx::array& x, const mx::array& head, const mx::array& targets);

// What a block of tokens gives whose logits exist at once. Lazy.
struct HeadBlock {
  mx::array loss;           // f32 scalar
  mx::array x_gradient;     // [T, C], in x's dtype
  mx::array log_sums;       // [T, 1] f32: log(sum(exp(logits)))
  mx::array probabilities;  // [T, V], in the head's dtype
};
HeadBlock head_block(const mx::array& x, const mx::array& head, const mx::array& targets);

// The gradient of rows of the head, without what subtract_targets takes from it: made from the logits of those rows
// alone, and the log_sums over all rows. In x's dtype.
mx::array head_rows_gradient(const mx::array& x, const mx::array& head_rows, const mx::array& log_sums);

// The same for all rows, from a block's probabilities p: added to `sum` where there is one, in f32.
mx::array add_product(std::optional<mx::array> sum, const mx::array& p, const mx::array& x);

// A head that is not one matrix: {x [T, C], tensors of its own that are trained ...} -> logits [T, V].
using HeadFunction = std::function<mx::array(const std::vector<mx::array>&)>;

// As head_block, for such a head at {x, tensors ...}.
struct HeadFunctionBlock {
  mx::array loss;                    // f32 scalar
  std::vector<mx::array> gradients;  // of x and the tensors, in their dtypes
};
HeadFunctionBlock head_function_block(const HeadFunction& head, const std::vector<mx::array>& in,
                                      const mx::array& targets);

// As above, for such a head.
mx::array head_function_loss(const HeadFunction& head, const std::vector<mx::array>& in, const mx::array& targets);
mx::array head_function_value(const HeadFunction& head, const mx::array& x, int vocab, const mx::array& targets);

// Takes x[t] from row targets[t] of `gradient`, for all t.
mx::array subtract_targets(const mx::array& gradient, const mx::array& x, const mx::array& targets);

}  // namespace trunkline
