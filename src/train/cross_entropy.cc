#include "train/cross_entropy.h"

#include <algorithm>
#include <vector>

#include "model/fused.h"

namespace trunkline {
namespace {

constexpr int64_t kChunkBytes = 128 << 20;  // of f32 logits

// Tokens whose logits exist at once.
int chunk_tokens(int vocab) { return static_cast<int>(std::max<int64_t>(1, kChunkBytes / (int64_t{4} * vocab))); }

mx::array rows_of(const mx::array& x, int begin, int end) {
  return x.ndim() == 1 ? mx::slice(x, {begin}, {end}) : mx::slice(x, {begin, 0}, {end, x.shape(1)});
}

mx::array chunk_logits(const mx::array& x, const mx::array& head) {
  return mx::astype(mx::matmul(x, mx::transpose(head)), mx::float32);
}

// Sum over a chunk of log(sum(exp(logits))) - logits[target]. With p = softmax(logits), the log is found from the
// largest entry, whose probability is at least 1 / V.
mx::array chunk_loss(const mx::array& logits, const mx::array& p, const mx::array& targets) {
  const mx::array log_sums =
      mx::subtract(mx::max(logits, -1, /* keepdims = */ true), mx::log(mx::max(p, -1, /* keepdims = */ true)));
  return mx::sum(mx::subtract(log_sums, mx::take_along_axis(logits, mx::expand_dims(targets, 1), 1)));
}

// The loss, its gradient by x [T, C] and by the head [V, C]. With p = softmax(logits), the gradient by the logits is
// p - onehot(targets); the one-hot part is a gather for x and a scatter for the head, and is never made.
std::vector<mx::array> loss_with_gradients(const mx::array& x, const mx::array& head, const mx::array& targets) {
  const int tokens = x.shape(0), chunk = chunk_tokens(head.shape(0));
  mx::array loss(0.0f);
  mx::array head_gradient = mx::zeros(head.shape(), mx::float32);
  std::vector<mx::array> x_gradients;
  for (int begin = 0; begin < tokens; begin += chunk) {
    const int end = std::min(tokens, begin + chunk);
    // The head's gradient so far stands before this chunk, so that two chunks' logits never exist at once.
    const mx::array part =
        begin == 0 ? rows_of(x, begin, end) : mx::depends({rows_of(x, begin, end)}, {head_gradient}).front();
    const mx::array part_targets = rows_of(targets, begin, end);
    const mx::array logits = chunk_logits(part, head);
    const mx::array p = row_softmax(logits);
    loss = mx::add(loss, chunk_loss(logits, p, part_targets));
    x_gradients.push_back(mx::subtract(mx::matmul(mx::astype(p, head.dtype()), head), mx::take(head, part_targets, 0)));
    const mx::array part_f32 = mx::astype(part, mx::float32);
    head_gradient =
        begin == 0 ? mx::matmul(mx::transpose(p), part_f32) : mx::addmm(head_gradient, mx::transpose(p), part_f32);
  }
  const mx::array updates = mx::negative(mx::expand_dims(mx::astype(x, mx::float32), 1));
  head_gradient = mx::scatter_add(head_gradient, targets, updates, 0);
  return {loss, mx::astype(mx::concatenate(x_gradients, 0), x.dtype()), mx::astype(head_gradient, head.dtype())};
}

}  // namespace

mx::array summed_cross_entropy(const mx::array& x, const mx::array& head, const mx::array& targets) {
  if (x.shape(0) == 0) return mx::array(0.0f);
  // The forward pass has the logits at hand, so the gradients are made there and the backward pass only scales them.
  const auto forward = [](const std::vector<mx::array>& in) { return loss_with_gradients(in[0], in[1], in[2]); };
  const auto backward = [](const std::vector<mx::array>& in, const std::vector<mx::array>& cotangents,
                           const std::vector<mx::array>& out) {
    return std::vector<mx::array>{mx::multiply(out[1], mx::astype(cotangents[0], out[1].dtype())),
                                  mx::multiply(out[2], mx::astype(cotangents[0], out[2].dtype())),
                                  mx::zeros_like(in[2])};
  };
  return mx::custom_vjp(forward, backward)({x, head, targets}).front();
}

mx::array summed_cross_entropy_value(const mx::array& x, const mx::array& head, const mx::array& targets) {
  const int chunk = chunk_tokens(head.shape(0));
  mx::array loss(0.0f);
  for (int begin = 0; begin < x.shape(0); begin += chunk) {
    const int end = std::min(x.shape(0), begin + chunk);
    const mx::array logits = chunk_logits(mx::depends({rows_of(x, begin, end)}, {loss}).front(), head);
    loss = mx::add(loss, chunk_loss(logits, row_softmax(logits), rows_of(targets, begin, end)));
  }
  return loss;
}

}  // namespace trunkline
