#include "model/decoder.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <unordered_map>

#include "base/fail.h"
#include "model/attention.h"
#include "model/fused.h"
#include "model/rms_norm.h"
#include "model/rope.h"

namespace trunkline {

Decoder::Decoder(const ModelShape& shape, const AdapterShape& adapter)
    : shape_(shape), layout_(tensor_shapes(shape)), rope_(shape.rope, static_cast<int>(shape.head_dim)) {
  std::ranges::copy(tensor_shapes(adapter), std::back_inserter(layout_));
  std::unordered_map<std::string, int> places;
  for (size_t i = 0; i < layout_.size(); ++i) places[layout_[i].name] = static_cast<int>(i);
  const auto place = [&](const std::string& name) {
    const auto found = places.find(name);
    return found == places.end() ? -1 : found->second;
  };
  std::unordered_map<std::string, size_t> modules;
  for (size_t i = 0; i < adapter.modules.size(); ++i) modules[adapter.modules[i].name] = i;
  // `base`: the module whose weight it is.
  const auto linear_at = [&](const std::string& name, const std::string& base) {
    LinearIndex at{.weight = place(base + ".weight"),
                   .bias = place(base + ".bias"),
                   .scales = place(base + ".scales"),
                   .biases = place(base + ".biases")};
    const auto packing = shape.quantization ? shape.quantization->of(base) : std::nullopt;
    if (packing) {
      at.group_size = static_cast<int>(packing->group_size);
      at.bits = static_cast<int>(packing->bits);
    }
    const auto adapted = modules.find(name);
    if (adapted == modules.end()) return at;
    const AdaptedModule& module = adapter.modules[adapted->second];
    at.a = place(name + (module.embedding ? ".lora_embedding_A" : ".lora_A.weight"));
    at.b = place(name + (module.embedding ? ".lora_embedding_B" : ".lora_B.weight"));
    at.magnitude = place(name + ".lora_magnitude_vector");
    if (at.magnitude >= 0) at.norms = static_cast<int>(layout_.size() + magnitude_count_++);
    at.scale = static_cast<float>(module.scale);
    at.module = static_cast<uint32_t>(adapted->second);
    at.embedding = module.embedding;
    return at;
  };
  embedding_ = linear_at("model.embed_tokens", "model.embed_tokens");
  head_ = linear_at("lm_head", shape.tied ? "model.embed_tokens" : "lm_head");
  norm_ = place("model.norm.weight");
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    const auto in_layer = [&](const char* name) { return linear_at(prefix + name, prefix + name); };
    layers_.push_back({.input_norm = place(prefix + "input_layernorm.weight"),
                       .q_norm = place(prefix + "self_attn.q_norm.weight"),
                       .k_norm = place(prefix + "self_attn.k_norm.weight"),
                       .post_norm = place(prefix + "post_attention_layernorm.weight"),
                       .q = in_layer("self_attn.q_proj"),
                       .k = in_layer("self_attn.k_proj"),
                       .v = in_layer("self_attn.v_proj"),
                       .o = in_layer("self_attn.o_proj"),
                       .gate = in_layer("mlp.gate_proj"),
                       .up = in_layer("mlp.up_proj"),
                       .down = in_layer("mlp.down_proj")});
  }
}

mx::array Decoder::rms_norm(const mx::array& x, const mx::array& weight) const {
  return trunkline::rms_norm(x, weight, static_cast<float>(shape_.norm_eps));
}

mx::array Decoder::embed(const Parameters& parameters, const mx::array& ids) const {
  return look_up(parameters, embedding_, ids);
}

std::vector<const LinearIndex*> Decoder::linear_layers() const {
  std::vector<const LinearIndex*> found = {&embedding_, &head_};
  for (const LayerIndex& at : layers_) {
    found.insert(found.end(), {&at.q, &at.k, &at.v, &at.o, &at.gate, &at.up, &at.down});
  }
  return found;
}

std::vector<const LinearIndex*> Decoder::adapted_layers() const {
  std::vector<const LinearIndex*> found = linear_layers();
  std::erase_if(found, [](const LinearIndex* it) { return !it->adapted(); });
  return found;
}

std::vector<const LinearIndex*> Decoder::scaled_layers(int64_t index) const {
  std::vector<const LinearIndex*> found;
  if (index < 0) {
    found = {&embedding_};
  } else if (index == shape_.layers) {
    found = {&head_};
  } else {
    const LayerIndex& at = layers_[static_cast<size_t>(index)];
    found = {&at.q, &at.k, &at.v, &at.o, &at.gate, &at.up, &at.down};
  }
  std::erase_if(found, [](const LinearIndex* it) { return it->magnitude < 0; });
  return found;
}

std::vector<int> Decoder::stage_tensors(int64_t index, Stage stage) const {
  const LayerIndex& at = layers_[static_cast<size_t>(index)];
  std::vector<int> used;
  const auto use = [&](std::initializer_list<int> norms, std::initializer_list<const LinearIndex*> linears) {
    for (const int norm : norms) {
      if (norm >= 0) used.push_back(norm);
    }
    for (const LinearIndex* it : linears) std::ranges::copy(it->tensors(), std::back_inserter(used));
  };
  switch (stage) {
    case Stage::heads: use({at.input_norm}, {&at.q, &at.k, &at.v}); break;
    case Stage::rotation: use({at.q_norm, at.k_norm}, {}); break;
    case Stage::attention_output: use({}, {&at.o}); break;
    case Stage::mlp_input: use({at.post_norm}, {&at.gate, &at.up}); break;
    case Stage::mlp_output: use({}, {&at.down}); break;
  }
  std::ranges::sort(used);
  return used;
}

std::vector<int> Decoder::half_tensors(int64_t index, Half half) const {
  std::vector<int> all;
  const auto add = [&](std::initializer_list<Stage> stages) {
    for (const Stage stage : stages) std::ranges::copy(stage_tensors(index, stage), std::back_inserter(all));
  };
  switch (half) {
    case Half::attention: add({Stage::heads, Stage::rotation, Stage::attention_output}); break;
    case Half::mlp: add({Stage::mlp_input, Stage::mlp_output}); break;
  }
  std::ranges::sort(all);
  return all;
}

std::vector<int> Decoder::layer_tensors(int64_t index) const {
  std::vector<int> all = half_tensors(index, Half::attention);
  std::ranges::copy(half_tensors(index, Half::mlp), std::back_inserter(all));
  std::ranges::sort(all);
  return all;
}

std::vector<mx::array> Decoder::stage(const Parameters& parameters, int64_t index, Stage stage,
                                      const std::vector<mx::array>& inputs, const RopeTable* rope,
                                      const Dropout* dropout) const {
  const LayerIndex& at = layers_[static_cast<size_t>(index)];
  const auto parameter = [&](int i) -> const mx::array& { return parameters[static_cast<size_t>(i)]; };
  const auto project = [&](const LinearIndex& linear, const mx::array& in) {
    return apply_linear(parameters, linear, in, dropout);
  };
  const mx::array& x = inputs.front();
  switch (stage) {
    case Stage::heads: {
      const mx::array normed = rms_norm(x, parameter(at.input_norm));
      return {project(at.q, normed), project(at.k, normed), project(at.v, normed)};
    }
    case Stage::rotation: {
      const auto split = [&](const mx::array& projected, int norm) {
        mx::array heads = mx::reshape(projected, {x.shape(0), x.shape(1), -1, static_cast<int>(shape_.head_dim)});
        if (norm >= 0) heads = rms_norm(heads, parameter(norm));
        return mx::transpose(heads, {0, 2, 1, 3});
      };
      const mx::array queries = split(inputs[0], at.q_norm), keys = split(inputs[1], at.k_norm);
      const mx::array values = split(inputs[2], -1);
      if (rope == nullptr) return {queries, keys, values};
      // Products on the CPU would put them in row order each time.
      return {rope->rotate(queries), rope->rotate(keys), fused_here(values) ? mx::contiguous(values) : values};
    }
    case Stage::attention_output: {
      const mx::array mixed = mx::reshape(mx::transpose(inputs[1], {0, 2, 1, 3}), {x.shape(0), x.shape(1), -1});
      return {x + project(at.o, mixed)};
    }
    case Stage::mlp_input: {
      const mx::array normed = rms_norm(x, parameter(at.post_norm));
      return {project(at.gate, normed), project(at.up, normed)};
    }
    case Stage::mlp_output: return {x + project(at.down, inputs[1])};
  }
  return {};
}

mx::array Decoder::layer(const Parameters& parameters, int64_t index, const mx::array& x, const RopeTable& rope,
                         KeyValueCache* cache, const AttentionMask& mask, const Dropout* dropout) const {
  const auto run = [&](Stage which, const std::vector<mx::array>& inputs) {
    return stage(parameters, index, which, inputs, &rope, dropout);
  };
  std::vector<mx::array> heads = run(Stage::rotation, run(Stage::heads, {x}));
  if (cache != nullptr) {
    cache->layers.resize(layers_.size());
    KeyValueCache::Entry& entry = cache->layers[static_cast<size_t>(index)];
    if (entry.keys) heads[1] = mx::concatenate({*entry.keys, heads[1]}, 2);
    if (entry.values) heads[2] = mx::concatenate({*entry.values, heads[2]}, 2);
    entry.keys = heads[1];
    entry.values = heads[2];
  }
  const mx::array mixed = causal_attention(heads[0], heads[1], heads[2], mask);
  const mx::array middle = run(Stage::attention_output, {x, mixed}).front();
  const std::vector<mx::array> mlp = run(Stage::mlp_input, {middle});
  return run(Stage::mlp_output, {middle, swiglu(mlp[0], mlp[1])}).front();
}

mx::array Decoder::norm(const Parameters& parameters, const mx::array& x) const {
  return rms_norm(x, parameters[static_cast<size_t>(norm_)]);
}

mx::array Decoder::head(const Parameters& parameters, const mx::array& x, const Dropout* dropout) const {
  return apply_linear(parameters, head_, x, dropout);
}

const mx::array& Decoder::head_weight(const Parameters& parameters) const {
  return parameters[static_cast<size_t>(head_.weight)];
}

mx::array Decoder::hidden(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache) const {
  mx::array x = embed(parameters, ids);
  const int begin = cache == nullptr ? 0 : cache->length;
  const RopeTable rope = rope_table(mx::arange(begin, begin + ids.shape(1), mx::int32), x.dtype());
  for (int64_t i = 0; i < shape_.layers; ++i) x = layer(parameters, i, x, rope, cache);
  if (cache != nullptr) cache->length += ids.shape(1);
  return norm(parameters, x);
}

mx::array Decoder::hidden(const Parameters& parameters, const mx::array& ids, const mx::array& positions,
                          const AttentionMask& mask, const Dropout* dropout) const {
  mx::array x = embed(parameters, ids);
  const RopeTable rope = rope_table(positions, x.dtype());
  for (int64_t i = 0; i < shape_.layers; ++i) x = layer(parameters, i, x, rope, nullptr, mask, dropout);
  return norm(parameters, x);
}

mx::array Decoder::logits(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache) const {
  return head(parameters, hidden(parameters, ids, cache));
}

}  // namespace trunkline
