#include "train/cross_entropy.h"

#include <algorithm>
#include <optional>
#include <utility>
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

struct Probabilities {
  mx::array p, log_sums;  // softmax(logits); log(sum(exp(logits))) of each row [T, 1]
  mx::array loss;         // the sum of log_sums - logits[target]
};

Probabilities probabilities_of(const mx::array& logits, const mx::array& targets) {
  const auto [p, log_sums] = row_softmax_and_log_sums(logits);
  const mx::array of_targets = mx::take_along_axis(logits, mx::expand_dims(targets, 1), 1);
  return {p, log_sums, mx::sum(mx::subtract(log_sums, of_targets))};
}

// The loss, its gradient by x [T, C] and by the head [V, C].
std::vector<mx::array> loss_with_gradients(const mx::array& x, const mx::array& head, const mx::array& targets) {
  const int tokens = x.shape(0), chunk = chunk_tokens(head.shape(0));
  mx::array loss(0.0f);
  std::optional<mx::array> head_gradient;
  std::vector<mx::array> x_gradients;
  for (int begin = 0; begin < tokens; begin += chunk) {
    const int end = std::min(tokens, begin + chunk);
    // The head's gradient so far stands before this chunk, so that two chunks' logits never exist at once.
    const mx::array part =
        head_gradient ? mx::depends({rows_of(x, begin, end)}, {*head_gradient}).front() : rows_of(x, begin, end);
    const HeadBlock block = head_block(part, head, rows_of(targets, begin, end));
    loss = mx::add(loss, block.loss);
    x_gradients.push_back(block.x_gradient);
    head_gradient = add_product(std::exchange(head_gradient, std::nullopt), block.probabilities, part);
  }
  const mx::array whole = subtract_targets(*head_gradient, x, targets);
  return {loss, mx::concatenate(x_gradients, 0), mx::astype(whole, head.dtype())};
}

}  // namespace

// The gradient by the logits is p - onehot(targets); the one-hot part is a gather for x and a scatter for the head, and
// is never made.
HeadBlock head_block(const mx::array& x, const mx::array& head, const mx::array& targets) {
  const auto [p, log_sums, loss] = probabilities_of(chunk_logits(x, head), targets);
  const mx::array in_head_dtype = mx::astype(p, head.dtype());
  const mx::array x_gradient = mx::subtract(mx::matmul(in_head_dtype, head), mx::take(head, targets, 0));
  return {loss, mx::astype(x_gradient, x.dtype()), log_sums, in_head_dtype};
}

mx::array head_rows_gradient(const mx::array& x, const mx::array& head_rows, const mx::array& log_sums) {
  const mx::array logits = chunk_logits(x, head_rows);
  if (!fused_here(logits)) {
    const mx::array p = exp_of_difference(logits, log_sums);
    return mx::matmul(mx::transpose(mx::astype(p, x.dtype())), x);
  }
  // softmax over the rows that are here, times the share that these have of the sum over all. The share multiplies x,
  // which is narrower.
  const auto [here, own_sums] = row_softmax_and_log_sums(logits);
  return mx::matmul(mx::transpose(here), mx::multiply(x, mx::exp(mx::subtract(own_sums, log_sums))));
}

mx::array add_product(std::optional<mx::array> sum, const mx::array& p, const mx::array& x) {
  if (sum && x.dtype() == mx::float32) return mx::addmm(*sum, mx::transpose(p), x);
  const mx::array product = mx::matmul(mx::transpose(p), x);
  return sum ? add_in_f32(*std::exchange(sum, std::nullopt), product) : mx::astype(product, mx::float32);
}

// p - onehot(targets) is made here: what makes logits of x is not known.
HeadFunctionBlock head_function_block(const HeadFunction& head, const std::vector<mx::array>& in,
                                      const mx::array& targets) {
  const auto run = [&](const std::vector<mx::array>& at) { return std::vector<mx::array>{head(at)}; };
  const mx::array raw = head(in);
  const auto [p, log_sums, loss] = probabilities_of(mx::astype(raw, mx::float32), targets);
  const mx::array hits = mx::expand_dims(targets, 1);
  const mx::array d = mx::put_along_axis(p, hits, mx::subtract(mx::take_along_axis(p, hits, 1), mx::array(1.0f)), 1);
  return {loss, mx::vjp(run, in, {mx::astype(d, raw.dtype())}).second};
}

mx::array head_function_loss(const HeadFunction& head, const std::vector<mx::array>& in, const mx::array& targets) {
  if (targets.shape(0) == 0) return mx::array(0.0f);
  const auto forward = [head](const std::vector<mx::array>& all) {
    const std::vector<mx::array> at(all.begin(), all.end() - 1);
    HeadFunctionBlock block = head_function_block(head, at, all.back());
    block.gradients.insert(block.gradients.begin(), block.loss);
    return block.gradients;
  };
  const auto backward = [](const std::vector<mx::array>& all, const std::vector<mx::array>& cotangents,
                           const std::vector<mx::array>& out) {
    std::vector<mx::array> gradients;
    for (size_t i = 1; i < out.size(); ++i) {
      gradients.push_back(mx::multiply(out[i], mx::astype(cotangents[0], out[i].dtype())));
    }
    gradients.push_back(mx::zeros_like(all.back()));
    return gradients;
  };
  std::vector<mx::array> all = in;
  all.push_back(targets);
  return mx::custom_vjp(forward, backward)(all).front();
}

mx::array subtract_targets(const mx::array& gradient, const mx::array& x, const mx::array& targets) {
  return mx::scatter_add(gradient, targets, mx::negative(mx::expand_dims(mx::astype(x, mx::float32), 1)), 0);
}

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

namespace {

template <typename Logits>
mx::array value_in_chunks(const mx::array& x, int vocab, const mx::array& targets, const Logits& logits_of) {
  const int chunk = chunk_tokens(vocab);
  mx::array loss(0.0f);
  for (int begin = 0; begin < x.shape(0); begin += chunk) {
    const int end = std::min(x.shape(0), begin + chunk);
    const mx::array logits = logits_of(mx::depends({rows_of(x, begin, end)}, {loss}).front());
    loss = mx::add(loss, probabilities_of(logits, rows_of(targets, begin, end)).loss);
  }
  return loss;
}

}  // namespace

mx::array summed_cross_entropy_value(const mx::array& x, const mx::array& head, const mx::array& targets) {
  return value_in_chunks(x, head.shape(0), targets, [&](const mx::array& part) { return chunk_logits(part, head); });
}

mx::array head_function_value(const HeadFunction& head, const mx::array& x, int vocab, const mx::array& targets) {
  return value_in_chunks(x, vocab, targets,
                         [&](const mx::array& part) { return mx::astype(head({part}), mx::float32); });
}

}  // namespace trunkline
