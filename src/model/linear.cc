#include "model/linear.h"

#include "model/fused.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

mx::array as(const Arrays& parameters, int position, mx::Dtype dtype) {
  return mx::astype(parameters[static_cast<size_t>(position)], dtype);
}

// x [..., in] times the transpose of the weight, without bias.
mx::array weight_product(const Arrays& parameters, const LinearIndex& at, const mx::array& x) {
  const mx::array& weight = parameters[static_cast<size_t>(at.weight)];
  if (!at.quantized()) return linear(x, weight);
  return mx::quantized_matmul(x, weight, as(parameters, at.scales, x.dtype()), as(parameters, at.biases, x.dtype()),
                              /* transpose = */ true, at.group_size, at.bits);
}

// scale A x [..., rank]
mx::array to_rank(const Arrays& parameters, const LinearIndex& at, const mx::array& x) {
  return mx::multiply(linear(x, as(parameters, at.a, x.dtype())), mx::array(at.scale, x.dtype()));
}

// What DoRA multiplies outputs by: [out].
mx::array magnitude_scale(const Arrays& parameters, const LinearIndex& at, mx::Dtype dtype) {
  const mx::array norms = mx::stop_gradient(weight_norms(parameters, at));
  return mx::astype(mx::divide(as(parameters, at.magnitude, mx::float32), norms), dtype);
}

}  // namespace

std::vector<int> LinearIndex::tensors() const {
  std::vector<int> found;
  for (const int position : {weight, bias, scales, biases, a, b, magnitude}) {
    if (position >= 0) found.push_back(position);
  }
  return found;
}

std::vector<int> LinearIndex::adapter_tensors() const {
  std::vector<int> found;
  for (const int position : {a, b, magnitude}) {
    if (position >= 0) found.push_back(position);
  }
  return found;
}

mx::array apply_linear(const Arrays& parameters, const LinearIndex& at, const mx::array& x, const Dropout* dropout) {
  mx::array y = weight_product(parameters, at, x);
  if (at.adapted()) {
    const mx::array dropped = dropout == nullptr ? x : dropout->apply(x, at.module);
    const mx::array product = linear(to_rank(parameters, at, dropped), as(parameters, at.b, x.dtype()));
    if (at.magnitude < 0) {
      y = mx::add(y, product);
    } else {
      const mx::array factor = magnitude_scale(parameters, at, x.dtype());
      if (dropout == nullptr) {
        y = mx::multiply(mx::add(y, product), factor);
      } else {
        // The base's own part is of x as it is, what the magnitude adds to it of x as dropped.
        const mx::array more =
            mx::multiply(weight_product(parameters, at, dropped), mx::subtract(factor, mx::array(1.0f, x.dtype())));
        y = mx::add(y, mx::add(more, mx::multiply(product, factor)));
      }
    }
  }
  return at.bias < 0 ? y : mx::add(y, parameters[static_cast<size_t>(at.bias)]);
}

mx::array look_up(const Arrays& parameters, const LinearIndex& at, const mx::array& ids) {
  const auto rows = [&](int position) { return mx::take(parameters[static_cast<size_t>(position)], ids, 0); };
  mx::array y = at.quantized()
                    ? mx::dequantize(rows(at.weight), rows(at.scales), rows(at.biases), at.group_size, at.bits)
                    : rows(at.weight);
  if (!at.adapted()) return y;
  const mx::array ranks = mx::take(mx::transpose(as(parameters, at.a, y.dtype())), ids, 0);
  const mx::array product =
      linear(mx::multiply(ranks, mx::array(at.scale, y.dtype())), as(parameters, at.b, y.dtype()));
  y = mx::add(y, product);
  return at.magnitude < 0 ? y : mx::multiply(y, magnitude_scale(parameters, at, y.dtype()));
}

mx::array plain_weight(const Arrays& parameters, const LinearIndex& at) {
  const mx::array& weight = parameters[static_cast<size_t>(at.weight)];
  if (!at.quantized()) return mx::astype(weight, mx::float32);
  return mx::dequantize(weight, as(parameters, at.scales, mx::float32), as(parameters, at.biases, mx::float32),
                        at.group_size, at.bits);
}

mx::array merged_weight(const Arrays& parameters, const LinearIndex& at) {
  mx::array weight = plain_weight(parameters, at);
  if (!at.adapted()) return weight;
  const mx::array a = as(parameters, at.a, mx::float32), b = as(parameters, at.b, mx::float32);
  const mx::array product = mx::multiply(mx::matmul(b, a), mx::array(at.scale));
  weight = mx::add(weight, at.embedding ? mx::transpose(product) : product);
  if (at.magnitude < 0) return weight;
  const mx::array factor = magnitude_scale(parameters, at, mx::float32);
  return mx::multiply(weight, at.embedding ? factor : mx::expand_dims(factor, 1));
}

// With rows w, a of W and B: |w + s a A|^2 = |w|^2 + 2 s a (A w) + s^2 a (A A^T) a^T, which needs no second matrix of
// the weight's size.
mx::array weight_norms(const Arrays& parameters, const LinearIndex& at) {
  const mx::array a = as(parameters, at.a, mx::float32), b = as(parameters, at.b, mx::float32);
  const mx::array weight = plain_weight(parameters, at);
  const mx::array crossed = mx::matmul(a, at.embedding ? weight : mx::transpose(weight));  // [rank, out]
  const mx::array own = mx::sum(mx::square(weight), at.embedding ? 0 : 1);
  const mx::array scale(at.scale);
  const mx::array product = mx::multiply(mx::matmul(b, mx::matmul(a, mx::transpose(a))), scale);
  const mx::array both = mx::add(mx::multiply(mx::transpose(crossed), mx::array(2.0f)), product);
  return mx::sqrt(mx::add(own, mx::multiply(mx::sum(mx::multiply(both, b), 1), scale)));
}

}  // namespace trunkline
