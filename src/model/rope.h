// Rotary position embedding as transformers computes it, type by type.
#pragma once

#include <mlx/mlx.h>

#include <vector>

#include "plan/model_shape.h"

namespace trunkline {

namespace mx = mlx::core;

// The angle a position, for each of the head_dim / 2 pairs: in f32, as transformers rounds them.
std::vector<float> inverse_frequencies(const RopeShape& shape, int head_dim);
// What the rotated vectors are multiplied by: 1 but for yarn.
double attention_factor(const RopeShape& shape);

class Rope {
 public:
  Rope(const RopeShape& shape, int head_dim);

  // x [B, H, L, D] of tokens at positions offset .. offset + L - 1; pairs are (i, i + D/2).
  mx::array rotate(const mx::array& x, int offset) const;

 private:
  mx::array frequencies_;  // [D/2]
  float factor_;
};

}  // namespace trunkline
