#include "plan/model_shape.h"

#include "base/file.h"
#include "base/json_reason.h"
#include "plan/config_reader.h"
#include "plan/rope_shape.h"

namespace trunkline {
namespace {

struct FamilyFacts {
  Family family;
  const char* model_type;
  const char* architecture;
  int64_t max_positions;  // transformers' default
};

constexpr FamilyFacts kFamilies[] = {{Family::llama, "llama", "LlamaForCausalLM", 2048},
                                     {Family::qwen2, "qwen2", "Qwen2ForCausalLM", 32768},
                                     {Family::qwen3, "qwen3", "Qwen3ForCausalLM", 32768}};

const FamilyFacts& read_family(const ConfigReader& config) {
  const std::string type = config.text("model_type");
  for (const FamilyFacts& facts : kFamilies) {
    if (type != facts.model_type) continue;
    if (!config.has("architectures")) return facts;
    const nlohmann::json& list = config.at("architectures");
    if (!list.is_array() || list.size() != 1 || list[0] != facts.architecture) {
      config.unsupported("architectures", fmt::format("a {} model is read as {}", type, facts.architecture));
    }
    return facts;
  }
  config.unsupported("model_type", "the types are llama, qwen2 and qwen3");
}

// Keys that change the computation, with the only value that this decoder computes.
void refuse_other_models(const ConfigReader& config) {
  // MLX's own writes the same under both keys.
  if (config.has("quantization_config") &&
      (!config.has("quantization") || config.at("quantization_config") != config.at("quantization"))) {
    config.unsupported("quantization_config", "weights must be float32, float16 or bfloat16, or packed by MLX");
  }
  for (const char* key : {"text_config", "vision_config", "audio_config"}) {
    if (config.has(key)) config.unsupported(key, "models of several modalities are not read");
  }
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (config.integer_or(key, 0, 0) != 0) config.unsupported(key, "mixtures of experts are not read");
  }
  if (config.has("hidden_act") && config.at("hidden_act") != "silu" && config.at("hidden_act") != "swish") {
    config.unsupported("hidden_act", "the activation is silu");
  }
  if (config.has("attention_dropout") && config.at("attention_dropout") != 0.0) {
    config.unsupported("attention_dropout", "attention has no dropout");
  }
  if (config.integer_or("pretraining_tp", 1) != 1) {
    config.unsupported("pretraining_tp", "products are computed whole");
  }
  if (config.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    config.unsupported("partial_rotary_factor", "heads are rotated whole");
  }
  if (config.flag_or("use_mrope", false)) config.unsupported("use_mrope", "positions have one dimension");
}

// Attention sees all earlier tokens, in every layer.
void refuse_sliding_window(const ConfigReader& config, const ModelShape& shape) {
  const char* why = "attention sees all earlier tokens";
  if (config.has("layer_types")) {
    const nlohmann::json& types = config.at("layer_types");
    if (!types.is_array() || types.size() != static_cast<size_t>(shape.layers)) {
      config.reject("layer_types", fmt::format("is not a list of num_hidden_layers, {}, entries", shape.layers));
    }
    for (const nlohmann::json& type : types) {
      if (type != "full_attention") config.unsupported("layer_types", why);
    }
    return;
  }
  const bool qwen = shape.family != Family::llama;
  const bool used = config.has("sliding_window") && config.flag_or("use_sliding_window", !qwen);
  if (used && (!qwen || config.integer_or("max_window_layers", 28, 0) < shape.layers)) {
    config.unsupported("sliding_window", why);
  }
  // A window that is switched on without a size is transformers' default of 4096.
  if (qwen && !config.contains("sliding_window") && config.flag_or("use_sliding_window", false) &&
      config.integer_or("max_window_layers", 28, 0) < shape.layers) {
    config.unsupported("use_sliding_window", why);
  }
}

void read_heads(const ConfigReader& config, ModelShape& shape) {
  shape.heads = config.integer("num_attention_heads");
  // Absent key: as many as heads for Llama; 32 for Qwen in transformers, which no checkpoint can mean unsaid.
  const bool may_lack = shape.family == Family::llama || config.contains("num_key_value_heads");
  shape.kv_heads = may_lack ? config.integer_or("num_key_value_heads", shape.heads)  //
                            : config.integer("num_key_value_heads");
  if (shape.heads % shape.kv_heads != 0) {
    config.reject("num_key_value_heads", fmt::format("does not divide num_attention_heads, {}", shape.heads));
  }
  if (config.has("head_dim")) {
    shape.head_dim = config.integer("head_dim");
  } else if (shape.family == Family::qwen3) {
    shape.head_dim = 128;  // transformers' default, whatever the hidden size
  } else if (shape.hidden % shape.heads == 0) {
    shape.head_dim = shape.hidden / shape.heads;
  } else {
    config.reject("num_attention_heads",
                  fmt::format("does not divide hidden_size, {}, and there is no head_dim", shape.hidden));
  }
  if (shape.head_dim % 2 != 0) config.wrong(fmt::format("head_dim {} is odd: heads cannot be rotated", shape.head_dim));
  if (shape.heads * shape.head_dim > INT32_MAX) {
    config.wrong(fmt::format("num_attention_heads {} times head_dim {} is too large", shape.heads, shape.head_dim));
  }
}

void read_biases(const ConfigReader& config, ModelShape& shape) {
  // Qwen2 has its biases whatever the config says; only Llama's MLP can have some.
  const bool attention_bias = shape.family != Family::qwen2 && config.flag_or("attention_bias", false);
  shape.qkv_bias = shape.family == Family::qwen2 || attention_bias;
  shape.output_bias = attention_bias;
  shape.mlp_bias = config.flag_or("mlp_bias", false);
  if (shape.mlp_bias && shape.family != Family::llama) config.unsupported("mlp_bias", "Qwen's MLP has no biases");
  shape.qk_norm = shape.family == Family::qwen3;
}

std::vector<int64_t> read_eos(const ConfigReader& config) {
  constexpr const char* kKey = "eos_token_id";
  if (!config.has(kKey)) return {};
  if (!config.at(kKey).is_array()) return {config.integer(kKey, 0)};
  std::vector<int64_t> ids;
  for (const nlohmann::json& id : config.at(kKey)) {
    if (!id.is_number_unsigned()) config.reject(kKey, "is not a list of token ids");
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::optional<Dtype> read_dtype(const ConfigReader& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.has(key)) continue;
    std::string name = config.text(key);
    if (name == "auto") return std::nullopt;
    if (name.starts_with("torch.")) name.erase(0, 6);
    const std::optional<Dtype> dtype = dtype_from_name(name);
    if (dtype != Dtype::f32 && dtype != Dtype::f16 && dtype != Dtype::bf16) {
      config.unsupported(key, "weights must be float32, float16 or bfloat16");
    }
    return dtype;
  }
  return std::nullopt;
}

Quantization::Packing read_packing(const ConfigReader& config, const Quantization::Packing& other) {
  if (config.has("mode") && config.text("mode") != "affine") config.unsupported("mode", "the mode is affine");
  const Quantization::Packing packing = {.group_size = config.integer_or("group_size", other.group_size),
                                         .bits = config.integer_or("bits", other.bits)};
  if (packing.bits != 4 && packing.bits != 8) config.unsupported("bits", "packed values have 4 or 8");
  if (packing.group_size != 32 && packing.group_size != 64 && packing.group_size != 128) {
    config.unsupported("group_size", "groups have 32, 64 or 128 values");
  }
  return packing;
}

std::optional<Quantization> read_quantization(const ConfigReader& config) {
  constexpr const char* kKey = "quantization";
  if (!config.has(kKey)) return std::nullopt;
  const ConfigReader values = config.object(kKey);
  values.integer("group_size");
  values.integer("bits");
  Quantization quantization;
  quantization.packing = read_packing(values, {});
  for (const auto& [key, value] : config.at(kKey).items()) {
    if (key == "group_size" || key == "bits" || key == "mode") continue;
    if (value.is_object()) {
      quantization.modules[key] = read_packing(values.object(key), quantization.packing);
    } else if (value.is_boolean()) {
      if (!value.get<bool>()) quantization.modules[key] = std::nullopt;
    } else {
      values.unsupported(key, "modules have group_size and bits, or false");
    }
  }
  return quantization;
}

}  // namespace

std::optional<Quantization::Packing> Quantization::of(const std::string& module) const {
  const auto found = modules.find(module);
  return found == modules.end() ? packing : found->second;
}

ModelShape read_model_shape(const std::filesystem::path& config_json) {
  const std::string file = config_json.string();
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(read_file(config_json));
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::input, "{}: not JSON: {}", file, json_reason(error.what()));
  }
  const ConfigReader config(json, file);

  ModelShape shape;
  const FamilyFacts& facts = read_family(config);
  shape.family = facts.family;
  refuse_other_models(config);
  shape.hidden = config.integer("hidden_size");
  shape.intermediate = config.integer("intermediate_size");
  shape.layers = config.integer("num_hidden_layers");
  if (shape.layers > 100'000) config.reject("num_hidden_layers", "is beyond any model");
  shape.vocab = config.integer("vocab_size");
  shape.max_positions = config.integer_or("max_position_embeddings", facts.max_positions);
  shape.norm_eps = config.positive_or("rms_norm_eps", 1e-6);
  shape.tied = config.flag_or("tie_word_embeddings", false);
  read_heads(config, shape);
  read_biases(config, shape);
  refuse_sliding_window(config, shape);
  shape.rope = read_rope_shape(config, shape.max_positions);
  shape.eos = read_eos(config);
  shape.dtype = read_dtype(config);
  shape.quantization = read_quantization(config);
  return shape;
}

std::vector<TensorShape> tensor_shapes(const ModelShape& shape) {
  std::vector<TensorShape> tensors;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in, bool bias) {
    const auto packing = shape.quantization ? shape.quantization->of(name) : std::nullopt;
    if (packing) {
      tensors.push_back({name + ".weight", {out, in * packing->bits / 32}, true});
      for (const char* part : {".scales", ".biases"}) tensors.push_back({name + part, {out, in / packing->group_size}});
    } else {
      tensors.push_back({name + ".weight", {out, in}});
    }
    if (bias) tensors.push_back({name + ".bias", {out}});
  };
  const auto norm = [&](const std::string& name, int64_t size) { tensors.push_back({name + ".weight", {size}}); };

  const int64_t query = shape.heads * shape.head_dim;
  const int64_t key = shape.kv_heads * shape.head_dim;
  linear("model.embed_tokens", shape.vocab, shape.hidden, false);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    norm(layer + "input_layernorm", shape.hidden);
    linear(layer + "self_attn.q_proj", query, shape.hidden, shape.qkv_bias);
    linear(layer + "self_attn.k_proj", key, shape.hidden, shape.qkv_bias);
    linear(layer + "self_attn.v_proj", key, shape.hidden, shape.qkv_bias);
    if (shape.qk_norm) norm(layer + "self_attn.q_norm", shape.head_dim);
    if (shape.qk_norm) norm(layer + "self_attn.k_norm", shape.head_dim);
    linear(layer + "self_attn.o_proj", shape.hidden, query, shape.output_bias);
    norm(layer + "post_attention_layernorm", shape.hidden);
    linear(layer + "mlp.gate_proj", shape.intermediate, shape.hidden, shape.mlp_bias);
    linear(layer + "mlp.up_proj", shape.intermediate, shape.hidden, shape.mlp_bias);
    linear(layer + "mlp.down_proj", shape.hidden, shape.intermediate, shape.mlp_bias);
  }
  norm("model.norm", shape.hidden);
  if (!shape.tied) linear("lm_head", shape.vocab, shape.hidden, false);
  return tensors;
}

int64_t ModelShape::parameters() const {
  int64_t count = 0;
  ModelShape plain = *this;
  plain.quantization.reset();
  for (const TensorShape& tensor : tensor_shapes(plain)) {
    int64_t size = 1;
    for (int64_t dim : tensor.dims) size *= dim;
    count += size;
  }
  return count;
}

}  // namespace trunkline
