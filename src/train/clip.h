// The size of gradients, and the factor that clips them.
#pragma once

#include <mlx/mlx.h>

#include <optional>
#include <vector>

#include "model/checkpoint.h"

namespace trunkline {

// Sum of the squares of an array's entries, accumulated in f64. Not finite if and only if an entry is not finite.
double squared_norm(const mx::array& gradient);

// Of each array.
std::vector<double> squared_norms(const std::vector<mx::array>& gradients);

// The 2-norm of all gradients together.
double global_norm(const Parameters& gradients);

// The first array with an entry that is not finite.
std::optional<size_t> first_not_finite(const Parameters& arrays);

// What gradients of this norm are multiplied by so that their norm is at most `max_norm`, as torch's clip_grad_norm_
// has it: min(1, max_norm / (norm + 1e-6)).
double clip_factor(double norm, double max_norm);

}  // namespace trunkline
