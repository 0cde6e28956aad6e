// A linear layer, or an embedding, from its tensors in Parameters: plain or quantized, with or without an adapter.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <vector>

#include "model/dropout.h"

namespace trunkline {

namespace mx = mlx::core;

// Positions of its tensors; -1 where there is none.
struct LinearIndex {
  int weight = -1, bias = -1;          // [out, in], [out]; an embedding's is [ids, out]
  int scales = -1, biases = -1;        // of a quantized weight, group by group along its rows
  int a = -1, b = -1, magnitude = -1;  // of an adapter: [rank, in], [out, rank], [out]; in is an embedding's ids
  // weight_norms, where there is a magnitude: past all tensors. Where Parameters end before, they are made when needed.
  int norms = -1;
  int group_size = 0, bits = 0;  // of a quantized weight
  float scale = 0.0f;            // of the adapter
  uint32_t module = 0;           // its number, for dropout
  bool embedding = false;

  bool quantized() const { return scales >= 0; }
  bool adapted() const { return a >= 0; }
  // Those that there are.
  std::vector<int> tensors() const;
  std::vector<int> adapter_tensors() const;
};

// x [..., in] -> W x + bias + scale B A dropped(x); with a magnitude m (DoRA), m / |W + scale B A| (W x + scale B A x)
// + bias, a norm a row, constant in the backward pass. `dropout` is of x's tokens; it may be null.
mx::array apply_linear(const std::vector<mx::array>& parameters, const LinearIndex& at, const mx::array& x,
                       const Dropout* dropout = nullptr);

// ids [...] -> [..., out]; DoRA's norms are of columns of the weight.
mx::array look_up(const std::vector<mx::array>& parameters, const LinearIndex& at, const mx::array& ids);

// The weight without its adapter, in f32.
mx::array plain_weight(const std::vector<mx::array>& parameters, const LinearIndex& at);

// The weight with its adapter merged into it, in f32.
mx::array merged_weight(const std::vector<mx::array>& parameters, const LinearIndex& at);

// |W + scale B A| [out], f32: rows' norms, an embedding's columns'.
mx::array weight_norms(const std::vector<mx::array>& parameters, const LinearIndex& at);

}  // namespace trunkline
