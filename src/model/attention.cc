#include "model/attention.h"

#include <cmath>

namespace trunkline {

mx::array causal_attention(const mx::array& queries, const mx::array& keys, const mx::array& values) {
  const float scale = 1 / std::sqrt(static_cast<float>(queries.shape(-1)));
  const bool one = queries.shape(2) == 1;
  return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, one ? "" : "causal");
}

}  // namespace trunkline
