// ModelShape: what config.json says of a decoder, as values; and the table of its tensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trunkline/dtype.h"

namespace trunkline {

enum class Family { llama, qwen2, qwen3 };

// Rotary position embedding. Fields beyond theta belong to the types named beside them (names as in config.json).
struct RopeShape {
  enum class Type { standard, linear, llama3, yarn };
  Type type = Type::standard;
  double theta = 10000.0;
  double factor = 1.0;                                    // linear, llama3, yarn
  double low_freq_factor = 1.0;                           // llama3
  double high_freq_factor = 4.0;                          // llama3
  double original_max_positions = 0.0;                    // llama3, yarn: original_max_position_embeddings
  double beta_fast = 32.0, beta_slow = 1.0;               // yarn
  std::optional<double> attention_factor = std::nullopt;  // yarn
  std::optional<double> mscale = std::nullopt, mscale_all_dim = std::nullopt;  // yarn
  bool truncate = true;                                                        // yarn

  bool operator==(const RopeShape&) const = default;
};

// Weights of linear layers and the embedding packed by MLX ("affine"): `group_size` values along a row share a scale
// and a bias, each is `bits` wide.
struct Quantization {
  struct Packing {
    int64_t group_size = 64, bits = 4;
    bool operator==(const Packing&) const = default;
  };
  Packing packing;
  std::map<std::string, std::optional<Packing>> modules;  // that have another, or none: by name

  std::optional<Packing> of(const std::string& module) const;
  bool operator==(const Quantization&) const = default;
};

struct ModelShape {
  Family family = Family::llama;
  int64_t hidden = 0;
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t vocab = 0;  // rows of the embedding, which may exceed the tokenizer's size
  int64_t max_positions = 0;
  double norm_eps = 1e-6;
  bool tied = false;         // the head is the embedding
  bool qkv_bias = false;     // biases of q, k, v
  bool output_bias = false;  // bias of o
  bool mlp_bias = false;     // biases of gate, up, down
  bool qk_norm = false;      // RMS norms of each head's query and key
  RopeShape rope;
  std::optional<Quantization> quantization = std::nullopt;
  std::vector<int64_t> eos;    // eos_token_id, a number or a list; may be empty
  std::optional<Dtype> dtype;  // dtype or torch_dtype

  int64_t parameters() const;  // a packed value is one
  bool operator==(const ModelShape&) const = default;
};

// Reads DIR/config.json. Both rope spellings are read (rope_parameters; rope_theta with rope_scaling); two that
// disagree are an error. Throws Error(input) naming the file and the key that is missing, malformed or of an
// unsupported value.
ModelShape read_model_shape(const std::filesystem::path& config_json);

struct TensorShape {
  std::string name;  // as Hugging Face names it: model.layers.0.self_attn.q_proj.weight
  std::vector<int64_t> dims;
  bool packed = false;  // a quantized weight's, as 32-bit words; its scales and biases follow it
};

// Every tensor of the model, in the order of the forward pass: embedding, layers 0 .. n-1, final norm, head (unless
// tied). Weights of linear layers are [out, in].
std::vector<TensorShape> tensor_shapes(const ModelShape& shape);

}  // namespace trunkline
