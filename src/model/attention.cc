#include "model/attention.h"

#include <cmath>

#include "model/fused.h"

namespace trunkline {

// The queries that share a key head are put one after the other, so that keys and values are never repeated and their
// gradients are summed inside the products.
mx::array causal_attention(const mx::array& queries, const mx::array& keys, const mx::array& values) {
  const int rows = queries.shape(0), heads = queries.shape(1), tokens = queries.shape(2), head_dim = queries.shape(3);
  const int key_heads = keys.shape(1), positions = keys.shape(2), group = heads / key_heads;
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  if (!fused_here(queries)) {
    return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, tokens == 1 ? "" : "causal");
  }
  const mx::array grouped = mx::reshape(queries, {rows, key_heads, group * tokens, head_dim});
  const mx::array scores = mx::matmul(grouped, mx::transpose(keys, {0, 1, 3, 2}));
  const mx::array weights = causal_softmax(mx::reshape(scores, {rows, key_heads, group, tokens, positions}), scale);
  const mx::array mixed = mx::matmul(mx::reshape(weights, {rows, key_heads, group * tokens, positions}), values);
  return mx::reshape(mixed, {rows, heads, tokens, head_dim});
}

}  // namespace trunkline
