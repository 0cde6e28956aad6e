// RMS norm over the last axis, one pass over the data: for f32 on the CPU with base/vector_math.h, where MLX makes it
// of parts, else by MLX's kernels.
#pragma once

#include <mlx/mlx.h>

namespace trunkline {

namespace mx = mlx::core;

// x / sqrt(mean(x^2) + epsilon) * weight: x [..., C], weight [C].
mx::array rms_norm(const mx::array& x, const mx::array& weight, float epsilon);

}  // namespace trunkline
