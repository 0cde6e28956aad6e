// The head's loss without the logits of a whole sequence.
#pragma once

#include <mlx/mlx.h>

namespace trunkline {

namespace mx = mlx::core;

// Cross entropy of hidden states x [T, C] under head [V, C], summed over the T targets (f32 scalar). Logits exist for
// one chunk of tokens at a time, in the backward pass too.
mx::array summed_cross_entropy(const mx::array& x, const mx::array& head, const mx::array& targets);

// The same value where no gradient will be asked for: cheaper.
mx::array summed_cross_entropy_value(const mx::array& x, const mx::array& head, const mx::array& targets);

}  // namespace trunkline
