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

// The cosines and sines of L tokens' angles, times the attention factor: [L, D/2], or [B, 1, L, D/2] where each row has
// positions of its own.
struct RopeTable {
  mx::array cosine, sine;

  // Of the tokens [begin, end).
  RopeTable part(int begin, int end) const;
  // x [B, H, L, D]; pairs are (i, i + D/2).
  mx::array rotate(const mx::array& x) const;
  // What x is owed, from the cotangent of that.
  mx::array rotate_back(const mx::array& d) const;
};

class Rope {
 public:
  Rope(const RopeShape& shape, int head_dim);

  // For tokens at `positions` [L] or [B, L] (int32). Angles are f32; `dtype` is that of what is rotated.
  RopeTable table(const mx::array& positions, mx::Dtype dtype) const;

 private:
  mx::array frequencies_;  // [D/2]
  float factor_;
};

}  // namespace trunkline
