#include "model/linear.h"

#include <algorithm>

#include "model/fused.h"
#include "model/parts.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

constexpr int kNormValues = 1 << 22;  // of a weight, of which norms are made at once

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

// Rows of the weight without its adapter, in f32.
mx::array weight_rows(const Arrays& parameters, const LinearIndex& at, int begin, int end) {
  const auto rows = [&](int position) { return part(parameters[static_cast<size_t>(position)], 0, begin, end); };
  const auto in_f32 = [&](int position) { return mx::astype(rows(position), mx::float32); };
  if (!at.quantized()) return in_f32(at.weight);
  return mx::dequantize(rows(at.weight), in_f32(at.scales), in_f32(at.biases), at.group_size, at.bits);
}

// What DoRA multiplies outputs by: [out].
mx::array magnitude_scale(const Arrays& parameters, const LinearIndex& at, mx::Dtype dtype) {
  const bool there = static_cast<size_t>(at.norms) < parameters.size();
  const mx::array norms =
      mx::stop_gradient(there ? parameters[static_cast<size_t>(at.norms)] : weight_norms(parameters, at));
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
  return weight_rows(parameters, at, 0, parameters[static_cast<size_t>(at.weight)].shape(0));
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
// the weight's size, and of W itself, as f32 and squared, a block of rows at a time.
mx::array weight_norms(const Arrays& parameters, const LinearIndex& at) {
  const mx::array a = as(parameters, at.a, mx::float32), b = as(parameters, at.b, mx::float32);
  const int rows = parameters[static_cast<size_t>(at.weight)].shape(0);
  const int columns = at.embedding ? b.shape(0) : a.shape(1);
  Arrays squares, products;  // of blocks: |w|^2, and A w [rank, out]
  for (const auto& [begin, end] : parts_of(rows, std::max(1, kNormValues / columns))) {
    const mx::array weight = weight_rows(parameters, at, begin, end);
    squares.push_back(mx::sum(mx::square(weight), at.embedding ? 0 : 1));
    products.push_back(at.embedding ? mx::matmul(part(a, 1, begin, end), weight)
                                    : mx::matmul(a, mx::transpose(weight)));
  }
  // A row of W is all of an output's weights; an embedding's is a part of every output's.
  const auto all = [&](const Arrays& blocks, int axis) {
    if (!at.embedding) return mx::concatenate(blocks, axis);
    mx::array sum = blocks.front();
    for (size_t i = 1; i < blocks.size(); ++i) sum = mx::add(sum, blocks[i]);
    return sum;
  };
  const mx::array own = all(squares, 0), crossed = all(products, 1), scale(at.scale);
  const mx::array product = mx::multiply(mx::matmul(b, mx::matmul(a, mx::transpose(a))), scale);
  const mx::array both = mx::add(mx::multiply(mx::transpose(crossed), mx::array(2.0f)), product);
  return mx::sqrt(mx::add(own, mx::multiply(mx::sum(mx::multiply(both, b), 1), scale)));
}

}  // namespace trunkline
