#include "model/attention.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/fused.h"

namespace trunkline {
namespace {

float scale_of(const mx::array& queries) { return 1 / std::sqrt(static_cast<float>(queries.shape(3))); }

// A block of queries, and the keys that any of them sees.
struct Block {
  int begin, end;              // of the queries
  int first_key;               // the keys are [first_key, end)
  std::vector<int32_t> first;  // of the mask, for the block's queries, counted from first_key

  Block(const AttentionMask& mask, int sequences, int tokens, int from, int to)
      : begin(from), end(to), first_key(mask.first.empty() ? 0 : to) {
    if (mask.first.empty()) return;
    const auto at = [&](int b, int i) {
      return mask.first[static_cast<size_t>(b) * static_cast<size_t>(tokens) + static_cast<size_t>(i)];
    };
    for (int b = 0; b < sequences; ++b) first_key = std::min(first_key, at(b, begin));
    for (int b = 0; b < sequences; ++b) {
      for (int i = begin; i < end; ++i) first.push_back(at(b, i) - first_key);
    }
    if (std::ranges::all_of(first, [](int32_t key) { return key == 0; })) first.clear();
  }
};

// The queries that share a key head are put one after the other, so that keys and values are never repeated and their
// gradients are summed inside the products: [B, H, L, D] -> [B, K, H / K * L, D].
mx::array grouped(const mx::array& x, int key_heads) {
  return mx::reshape(x, {x.shape(0), key_heads, x.shape(1) / key_heads * x.shape(2), x.shape(3)});
}

mx::array transposed(const mx::array& x) { return mx::swapaxes(x, -1, -2); }

// Weights of the keys, [B, K, H / K, L, S].
mx::array weights_of(const mx::array& queries, const mx::array& keys, const std::vector<int32_t>& first) {
  const int key_heads = keys.shape(1), group = queries.shape(1) / key_heads;
  const mx::array scores = mx::matmul(grouped(queries, key_heads), transposed(keys));
  return causal_softmax(mx::reshape(scores, {queries.shape(0), key_heads, group, queries.shape(2), keys.shape(2)}),
                        scale_of(queries), first);
}

mx::array attend(const mx::array& queries, const mx::array& keys, const mx::array& values,
                 const std::vector<int32_t>& first) {
  const int rows = queries.shape(0), key_heads = keys.shape(1), positions = keys.shape(2);
  if (!fused_here(queries)) {
    const float scale = scale_of(queries);
    if (first.empty()) {
      const char* mask = queries.shape(2) == 1 ? "" : "causal";
      return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, mask);
    }
    const mx::array mask = seen_keys({rows, 1, queries.shape(2), positions}, first);
    return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, "array", mask);
  }
  const mx::array weights = mx::reshape(weights_of(queries, keys, first), {rows, key_heads, -1, positions});
  return mx::reshape(mx::matmul(weights, values), queries.shape());
}

}  // namespace

mx::array causal_attention(const mx::array& queries, const mx::array& keys, const mx::array& values,
                           const AttentionMask& mask) {
  return attend(queries, keys, values, mask.first);
}

AttentionMask AttentionMask::packed(const std::vector<int32_t>& segments, int tokens) {
  AttentionMask mask;
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto place = static_cast<int32_t>(i % static_cast<size_t>(tokens));
    const bool begins = place == 0 || segments[i] != segments[i - 1];
    mask.first.push_back(begins ? place : mask.first.back());
  }
  return mask;
}

AttentionMask AttentionMask::windowed(int sequences, int tokens, int window) const {
  AttentionMask mask;
  for (int i = 0; i < sequences * tokens; ++i) {
    const int32_t seen = first.empty() ? 0 : first[static_cast<size_t>(i)];
    mask.first.push_back(std::max(seen, i % tokens - window + 1));
  }
  return mask;
}

mx::array attention_in_blocks(const mx::array& queries, const mx::array& keys, const mx::array& values,
                              const AttentionMask& mask, int block, Pacer& pacer) {
  const int sequences = queries.shape(0), tokens = queries.shape(2);
  Assembly mixed(queries.shape(), queries.dtype(), 2);
  for (const auto& [begin, end] : parts_of(tokens, block)) {
    const Block at(mask, sequences, tokens, begin, end);
    mixed.put(begin, end,
              attend(part(queries, 2, begin, end), part(keys, 2, at.first_key, end), part(values, 2, at.first_key, end),
                     at.first));
    pacer.queue({mixed.value()});
  }
  return mixed.take();
}

// With P = softmax(scale Q K^T) and Y = P V: dV = P^T dY, dP = dY V^T, dS = the softmax's gradient, dQ = dS K,
// dK = dS^T Q.
AttentionGradients attention_gradients_in_blocks(const mx::array& queries, const mx::array& keys,
                                                 const mx::array& values, const mx::array& d, const AttentionMask& mask,
                                                 int block, Pacer& pacer) {
  const int sequences = queries.shape(0), tokens = queries.shape(2), key_heads = keys.shape(1);
  Assembly d_queries(queries.shape(), queries.dtype(), 2);
  Accumulation d_keys(keys.shape(), 2), d_values(values.shape(), 2);
  // Last block first: it sees all keys, so that where there is but one, nothing need be added to zeros.
  const std::vector<Part> blocks = parts_of(tokens, block);
  const auto block_gradients = [&](int begin, int end) {
    const Block at(mask, sequences, tokens, begin, end);
    const mx::array q = part(queries, 2, begin, end), k = part(keys, 2, at.first_key, end),
                    v = part(values, 2, at.first_key, end), dy = grouped(part(d, 2, begin, end), key_heads);
    const mx::array p = weights_of(q, k, at.first);
    const mx::Shape flat = {sequences, key_heads, -1, end - at.first_key};
    const mx::array dp = mx::reshape(mx::matmul(dy, transposed(v)), p.shape());
    const mx::array ds = mx::reshape(causal_softmax_gradient(p, dp, scale_of(queries), at.first), flat);
    d_values.add(at.first_key, end, mx::matmul(transposed(mx::reshape(p, flat)), dy));
    d_queries.put(begin, end, mx::reshape(mx::matmul(ds, k), q.shape()));
    d_keys.add(at.first_key, end, mx::matmul(transposed(ds), grouped(q, key_heads)));
  };
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    block_gradients(it->begin, it->end);
    // Nothing of a block is held when it is queued but what it is made for.
    pacer.queue({d_queries.value(), d_keys.value(), d_values.value()});
  }
  return {d_queries.take(), d_keys.take(keys.dtype()), d_values.take(values.dtype())};
}

}  // namespace trunkline
