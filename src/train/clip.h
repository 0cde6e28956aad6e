// The size of gradients, and the factor that clips them.
#pragma once

#include <mlx/mlx.h>

#include <optional>
#include <vector>

#include "model/checkpoint.h"

namespace trunkline {

// Sum of the squares of an array's entries, accumulated in f64 on the processor. Not finite if an entry is not finite;
// elsewhere too if one is beyond 1e28.
double squared_norm(const mx::array& gradient);

// The same of each on a GPU, lazy, times kSquaresScale: [gradients] f32.
mx::array squared_norms_on_device(const std::vector<mx::array>& gradients);
// So that squares of large numbers do not overflow f32.
constexpr float kSquaresScale = 0x1p-64f;

// The 2-norm of all gradients together.
double global_norm(const Parameters& gradients);

// The first array with an entry that is not finite.
std::optional<size_t> first_not_finite(const Parameters& arrays);

// What gradients of this norm are multiplied by so that their norm is at most `max_norm`, as torch's clip_grad_norm_
// has it: min(1, max_norm / (norm + 1e-6)).
double clip_factor(double norm, double max_norm);

}  // namespace trunkline
