#include "model/decoder.h"

#include <unordered_map>

#include "base/fail.h"
#include "model/attention.h"
#include "model/fused.h"
#include "model/rope.h"

namespace trunkline {
Decoder::Decoder(const ModelShape& shape)
    : shape_(shape), layout_(tensor_shapes(shape)), rope_(shape.rope, static_cast<int>(shape.head_dim)) {
  std::unordered_map<std::string, int> places;
  for (size_t i = 0; i < layout_.size(); ++i) places[layout_[i].name] = static_cast<int>(i);
  const auto place = [&](const std::string& name) {
    const auto found = places.find(name);
    return found == places.end() ? -1 : found->second;
  };
  embedding_ = place("model.embed_tokens.weight");
  norm_ = place("model.norm.weight");
  head_ = shape.tied ? embedding_ : place("lm_head.weight");
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const auto linear_at = [&](const char* name) {
      return LinearIndex{place(prefix + name + ".weight"), place(prefix + name + ".bias")};
    };
    layers_.push_back({.input_norm = place(prefix + "input_layernorm.weight"),
                       .q_norm = place(prefix + "self_attn.q_norm.weight"),
                       .k_norm = place(prefix + "self_attn.k_norm.weight"),
                       .post_norm = place(prefix + "post_attention_layernorm.weight"),
                       .q = linear_at("self_attn.q_proj"),
                       .k = linear_at("self_attn.k_proj"),
                       .v = linear_at("self_attn.v_proj"),
                       .o = linear_at("self_attn.o_proj"),
                       .gate = linear_at("mlp.gate_proj"),
                       .up = linear_at("mlp.up_proj"),
                       .down = linear_at("mlp.down_proj")});
  }
}

mx::array Decoder::rms_norm(const mx::array& x, const mx::array& weight) const {
  return mx::fast::rms_norm(x, weight, static_cast<float>(shape_.norm_eps));
}

mx::array Decoder::project(const Parameters& parameters, const LinearIndex& index, const mx::array& x) const {
  return linear(x, parameters[static_cast<size_t>(index.weight)],
                index.bias < 0 ? nullptr : &parameters[static_cast<size_t>(index.bias)]);
}

mx::array Decoder::embed(const Parameters& parameters, const mx::array& ids) const {
  return mx::take(parameters[static_cast<size_t>(embedding_)], ids, 0);
}

mx::array Decoder::attend(const Parameters& parameters, const LayerIndex& index, const mx::array& x,
                          KeyValueCache::Entry* cache, int offset) const {
  const int rows = x.shape(0), tokens = x.shape(1);
  const int head_dim = static_cast<int>(shape_.head_dim);
  const auto split = [&](const LinearIndex& linear_index, int64_t heads) {
    return mx::reshape(project(parameters, linear_index, x), {rows, tokens, static_cast<int>(heads), head_dim});
  };
  mx::array queries = split(index.q, shape_.heads);
  mx::array keys = split(index.k, shape_.kv_heads);
  mx::array values = mx::transpose(split(index.v, shape_.kv_heads), {0, 2, 1, 3});
  if (shape_.qk_norm) {
    queries = rms_norm(queries, parameters[static_cast<size_t>(index.q_norm)]);
    keys = rms_norm(keys, parameters[static_cast<size_t>(index.k_norm)]);
  }
  queries = rope_.rotate(mx::transpose(queries, {0, 2, 1, 3}), offset);
  keys = rope_.rotate(mx::transpose(keys, {0, 2, 1, 3}), offset);
  if (cache != nullptr) {
    if (cache->keys) keys = mx::concatenate({*cache->keys, keys}, 2);
    if (cache->values) values = mx::concatenate({*cache->values, values}, 2);
    cache->keys = keys;
    cache->values = values;
  }
  const mx::array mixed = causal_attention(queries, keys, values);
  return project(parameters, index.o, mx::reshape(mx::transpose(mixed, {0, 2, 1, 3}), {rows, tokens, -1}));
}

mx::array Decoder::layer(const Parameters& parameters, int64_t index, const mx::array& x, KeyValueCache* cache) const {
  const LayerIndex& at = layers_[static_cast<size_t>(index)];
  const auto parameter = [&](int i) -> const mx::array& { return parameters[static_cast<size_t>(i)]; };
  KeyValueCache::Entry* entry = nullptr;
  if (cache != nullptr) {
    cache->layers.resize(layers_.size());
    entry = &cache->layers[static_cast<size_t>(index)];
  }
  const mx::array middle =
      x + attend(parameters, at, rms_norm(x, parameter(at.input_norm)), entry, cache == nullptr ? 0 : cache->length);
  const mx::array normed = rms_norm(middle, parameter(at.post_norm));
  const mx::array gated = swiglu(project(parameters, at.gate, normed), project(parameters, at.up, normed));
  return middle + project(parameters, at.down, gated);
}

mx::array Decoder::norm(const Parameters& parameters, const mx::array& x) const {
  return rms_norm(x, parameters[static_cast<size_t>(norm_)]);
}

const mx::array& Decoder::head(const Parameters& parameters) const { return parameters[static_cast<size_t>(head_)]; }

mx::array Decoder::hidden(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache) const {
  mx::array x = embed(parameters, ids);
  for (int64_t i = 0; i < shape_.layers; ++i) x = layer(parameters, i, x, cache);
  if (cache != nullptr) cache->length += ids.shape(1);
  return norm(parameters, x);
}

mx::array Decoder::logits(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache) const {
  return linear(hidden(parameters, ids, cache), head(parameters));
}

}  // namespace trunkline
