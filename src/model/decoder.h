// Decoder: the forward pass of Llama, Qwen2 and Qwen3 in MLX, in pieces (embed, one layer, norm, head) that callers
// string together. Knows nothing of training or ranks. Shapes: B rows, L tokens, C hidden, V vocabulary, H heads, D
// head_dim.
#pragma once

#include <mlx/mlx.h>

#include <optional>
#include <vector>

#include "model/adapter_shape.h"
#include "model/attention.h"
#include "model/checkpoint.h"
#include "model/linear.h"
#include "model/rope.h"
#include "plan/model_shape.h"

namespace trunkline {

// Keys and values of the tokens seen so far, one entry a layer: [B, kv_heads, L, D].
struct KeyValueCache {
  struct Entry {
    std::optional<mx::array> keys, values;
  };
  std::vector<Entry> layers;
  int length = 0;  // tokens already held; the caller advances it once all layers have run
};

// A layer in five stages, each from what the products of the one before gave: inputs -> results.
enum class Stage {
  heads,             // {x [B, L, C]} -> {queries, keys, values}, as projected: [B, L, heads * D]
  rotation,          // {queries, keys, values} as projected -> as attention takes them: [B, heads, L, D]
  attention_output,  // {x, attention's result [B, H, L, D]} -> {middle [B, L, C]}
  mlp_input,         // {middle} -> {gate, up}: [B, L, F]
  mlp_output,        // {middle, swiglu(gate, up)} -> {the layer's output [B, L, C]}
};

// And in two halves, in the order of the forward pass. Each has its own norm, and adds to its input.
enum class Half { attention, mlp };

class Decoder {
 public:
  explicit Decoder(const ModelShape& shape, const AdapterShape& adapter = {});

  const ModelShape& shape() const { return shape_; }
  // The model's tensors, then the adapter's.
  const std::vector<TensorShape>& layout() const { return layout_; }

  // ids [B, L] (int32) -> [B, L, C]
  mx::array embed(const Parameters& parameters, const mx::array& ids) const;
  // One layer, causal: x [B, L, C] -> [B, L, C]. With a cache, x are the tokens after those it holds.
  mx::array layer(const Parameters& parameters, int64_t index, const mx::array& x, const RopeTable& rope,
                  KeyValueCache* cache = nullptr, const AttentionMask& mask = {},
                  const Dropout* dropout = nullptr) const;
  // One stage of a layer; `rope` (rotation alone needs it) and `dropout` (of adapters' inputs) are of its tokens.
  std::vector<mx::array> stage(const Parameters& parameters, int64_t index, Stage stage,
                               const std::vector<mx::array>& inputs, const RopeTable* rope = nullptr,
                               const Dropout* dropout = nullptr) const;
  // Made once a forward pass: for tokens at `positions` [L] or [B, L] (int32), whose states have `dtype`.
  RopeTable rope_table(const mx::array& positions, mx::Dtype dtype) const { return rope_.table(positions, dtype); }
  // The tensors that a stage uses, as positions in Parameters, ascending.
  std::vector<int> stage_tensors(int64_t index, Stage stage) const;
  // Those of all stages of half a layer, and of a layer.
  std::vector<int> half_tensors(int64_t index, Half half) const;
  std::vector<int> layer_tensors(int64_t index) const;
  // Positions of the embedding, the final norm and the head; the first and the last are the same when tied.
  int embedding_index() const { return embedding_.weight; }
  int norm_index() const { return norm_; }
  int head_index() const { return head_.weight; }
  // Embedding and head as layers of their own; where tied, they share the weight, not adapters.
  const LinearIndex& embedding_layer() const { return embedding_; }
  const LinearIndex& head_layer() const { return head_; }
  // All linear layers, embedding and head first; and those that have an adapter.
  std::vector<const LinearIndex*> linear_layers() const;
  std::vector<const LinearIndex*> adapted_layers() const;
  // Those that have a magnitude, of a layer; -1: the embedding, the number of layers: the head. Their `norms` follow
  // the layout, magnitude_count of them.
  std::vector<const LinearIndex*> scaled_layers(int64_t index) const;
  size_t magnitude_count() const { return magnitude_count_; }
  // The final norm: [..., C] -> [..., C]
  mx::array norm(const Parameters& parameters, const mx::array& x) const;
  // The head: hidden states after the norm [..., C] -> logits [..., V]
  mx::array head(const Parameters& parameters, const mx::array& x, const Dropout* dropout = nullptr) const;
  // Whether the head is but a matrix: neither quantized nor adapted.
  bool head_is_matrix() const { return !head_.quantized() && !head_.adapted(); }
  // The head's weight [V, C]: lm_head, or the embedding when tied.
  const mx::array& head_weight(const Parameters& parameters) const;

  // embed, all layers, norm: [B, L] -> [B, L, C]
  mx::array hidden(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache = nullptr) const;
  // The same of tokens that stand at `positions` ([L] or [B, L], int32) and see what `mask` shows.
  mx::array hidden(const Parameters& parameters, const mx::array& ids, const mx::array& positions,
                   const AttentionMask& mask, const Dropout* dropout = nullptr) const;
  // hidden times head: [B, L] -> [B, L, V]
  mx::array logits(const Parameters& parameters, const mx::array& ids, KeyValueCache* cache = nullptr) const;

 private:
  // Positions of tensors in Parameters; -1 where the family has none.
  struct LayerIndex {
    int input_norm, q_norm, k_norm, post_norm;
    LinearIndex q, k, v, o, gate, up, down;
  };

  mx::array rms_norm(const mx::array& x, const mx::array& weight) const;

  ModelShape shape_;
  std::vector<TensorShape> layout_;
  std::vector<LayerIndex> layers_;
  LinearIndex embedding_, head_;
  int norm_ = 0;
  size_t magnitude_count_ = 0;
  Rope rope_;
};

}  // namespace trunkline
