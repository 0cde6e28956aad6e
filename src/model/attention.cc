#include "model/attention.h"

#include <mlx/backend/cuda/cuda.h>

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

// Queries are scaled rather than scores, where these are not scaled on the way.
float scale_of_scores(const mx::array& queries) { return fused_here(queries) ? scale_of(queries) : 1.0f; }

mx::array scaled(const mx::array& queries) {
  return fused_here(queries) ? queries : mx::multiply(queries, mx::array(scale_of(queries), queries.dtype()));
}

// Weights of the keys, [B, K, H / K, L, S], for scaled queries, of which `group` share a key head.
mx::array weights_of(const mx::array& grouped_queries, int group, const mx::array& keys,
                     const std::vector<int32_t>& first) {
  return causal_softmax(
      mx::reshape(mx::matmul(grouped_queries, transposed(keys)),
                  {keys.shape(0), keys.shape(1), group, grouped_queries.shape(2) / group, keys.shape(2)}),
      scale_of_scores(grouped_queries), first);
}

// Whether MLX has a kernel here that never makes the scores: cuDNN's, and Metal's.
bool has_kernel(const mx::array& queries) {
  if (mx::default_device() == mx::Device::cpu) return false;
  return !mx::cu::is_available() || !attention_makes_scores(queries.dtype(), queries.shape(3));
}

// And one that makes the gradients without them.
bool has_gradient_kernel(const mx::array& queries, const AttentionMask& mask) {
  return mask.first.empty() && !attention_makes_scores(queries.dtype(), queries.shape(3));
}

// `kept`, unless null, is given the weights, if they are made.
mx::array attend(const mx::array& queries, const mx::array& keys, const mx::array& values,
                 const std::vector<int32_t>& first, std::vector<mx::array>* kept = nullptr) {
  const int rows = queries.shape(0), key_heads = keys.shape(1), positions = keys.shape(2);
  if (has_kernel(queries)) {
    const float scale = scale_of(queries);
    if (first.empty()) {
      const char* mask = queries.shape(2) == 1 ? "" : "causal";
      return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, mask);
    }
    const mx::array mask = seen_keys({rows, 1, queries.shape(2), positions}, first);
    return mx::fast::scaled_dot_product_attention(queries, keys, values, scale, "array", mask);
  }
  const mx::array weights = weights_of(grouped(scaled(queries), key_heads), queries.shape(1) / key_heads, keys, first);
  if (kept != nullptr) kept->push_back(weights);
  return mx::reshape(mx::matmul(mx::reshape(weights, {rows, key_heads, -1, positions}), values), queries.shape());
}

// The kernel takes tokens in tiles: what is added at the end sees all and is seen by nothing.
constexpr int kTile = 128;

AttentionGradients gradients_by_kernel(const mx::array& queries, const mx::array& keys, const mx::array& values,
                                       const mx::array& d) {
  const int tokens = queries.shape(2), added = (kTile - tokens % kTile) % kTile;
  const auto padded = [&](const mx::array& x) {
    return added == 0 ? x : mx::pad(x, {{0, 0}, {0, 0}, {0, added}, {0, 0}});
  };
  const auto attention = [&](const std::vector<mx::array>& in) {
    return std::vector<mx::array>{
        mx::fast::scaled_dot_product_attention(in[0], in[1], in[2], scale_of(queries), "causal")};
  };
  const std::vector<mx::array> made =
      mx::vjp(attention, {padded(queries), padded(keys), padded(values)}, {padded(d)}).second;
  return {part(made[0], 2, 0, tokens), part(made[1], 2, 0, tokens), part(made[2], 2, 0, tokens)};
}

}  // namespace

bool attention_makes_scores(mx::Dtype dtype, int head_dim) {
  if (mx::default_device() == mx::Device::cpu || !mx::cu::is_available()) return true;
  return dtype == mx::float32 || head_dim % 8 != 0 || head_dim > 128;
}

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
                              const AttentionMask& mask, int block, Pacer& pacer, std::vector<mx::array>* weights) {
  const int sequences = queries.shape(0), tokens = queries.shape(2);
  if (has_gradient_kernel(queries, mask)) block = tokens;
  // Token by token, as the product that comes next takes it.
  Assembly mixed({sequences, tokens, queries.shape(1), queries.shape(3)}, queries.dtype(), 1);
  for (const auto& [begin, end] : parts_of(tokens, block)) {
    const Block at(mask, sequences, tokens, begin, end);
    mixed.put(begin, end,
              mx::swapaxes(attend(part(queries, 2, begin, end), part(keys, 2, at.first_key, end),
                                  part(values, 2, at.first_key, end), at.first, weights),
                           1, 2));
    pacer.queue({mixed.value()});
  }
  const mx::array by_token = mixed.take();
  return mx::swapaxes(fused_here(by_token) ? mx::contiguous(by_token) : by_token, 1, 2);
}

mx::array attention_dots(const mx::array& result, const mx::array& d) {
  if (fused_here(result)) return mx::zeros({result.shape(0), result.shape(1), result.shape(2), 1});
  const auto products = [](const std::vector<mx::array>& in) {
    return std::vector<mx::array>{mx::astype(in[0], mx::float32) * mx::astype(in[1], mx::float32)};
  };
  return mx::sum(one_pass(products, {result, d}).front(), -1, /* keepdims = */ true);
}

// With P = softmax(scale Q K^T) and Y = P V: dV = P^T dY, dP = dY V^T, dS = P (dP - rows' sums of dY Y), dQ = dS K,
// dK = dS^T Q.
AttentionGradients attention_gradients_in_blocks(const mx::array& queries, const mx::array& keys,
                                                 const mx::array& values, const mx::array& d, const mx::array& dots,
                                                 const AttentionMask& mask, int block, Pacer& pacer,
                                                 std::vector<mx::array> weights) {
  if (has_gradient_kernel(queries, mask)) {
    AttentionGradients made = gradients_by_kernel(queries, keys, values, d);
    pacer.queue({made.queries, made.keys, made.values});
    return made;
  }
  const int sequences = queries.shape(0), tokens = queries.shape(2), key_heads = keys.shape(1);
  Assembly d_queries(queries.shape(), queries.dtype(), 2);
  Accumulation d_keys(keys.shape(), 2), d_values(values.shape(), 2);
  // Last block first: it sees all keys, so that where there is but one, nothing need be added to zeros.
  const std::vector<Part> blocks = parts_of(tokens, block);
  const auto block_gradients = [&](int begin, int end) {
    const Block at(mask, sequences, tokens, begin, end);
    const mx::array q = grouped(scaled(part(queries, 2, begin, end)), key_heads), k = part(keys, 2, at.first_key, end),
                    v = part(values, 2, at.first_key, end), dy = grouped(part(d, 2, begin, end), key_heads);
    const mx::array p = weights.empty() ? weights_of(q, queries.shape(1) / key_heads, k, at.first) : weights.back();
    if (!weights.empty()) weights.pop_back();
    const mx::Shape flat = {sequences, key_heads, -1, end - at.first_key};
    const mx::array dp = mx::reshape(mx::matmul(dy, transposed(v)), p.shape());
    mx::Shape rows = p.shape();
    rows.back() = 1;
    const mx::array sums = mx::reshape(part(dots, 2, begin, end), rows);
    const mx::array ds = mx::reshape(causal_softmax_gradient(p, dp, sums, scale_of_scores(q), at.first), flat);
    d_values.add(at.first_key, end, mx::matmul(transposed(mx::reshape(p, flat)), dy));
    const mx::array dq = mx::reshape(mx::matmul(ds, k), {sequences, queries.shape(1), end - begin, queries.shape(3)});
    d_queries.put(begin, end, scaled(dq));
    d_keys.add(at.first_key, end, mx::matmul(transposed(ds), q));
  };
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    block_gradients(it->begin, it->end);
    // Nothing of a block is held when it is queued but what it is made for.
    pacer.queue({d_queries.value(), d_keys.value(), d_values.value()});
  }
  return {d_queries.take(), d_keys.take(keys.dtype()), d_values.take(values.dtype())};
}

}  // namespace trunkline
