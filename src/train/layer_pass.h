// One layer's forward and backward pass in blocks of queries and of tokens, each evaluated before the next.
#pragma once

#include <mlx/mlx.h>

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "model/attention.h"
#include "model/decoder.h"
#include "model/parts.h"
#include "train/trained.h"

namespace trunkline {

// What a layer keeps of its forward pass for its backward pass, which makes the rest again. It enters speed and memory
// alone: what is made again has the same bits.
enum class Keep { input, attention, products, all };

struct KeptLayer {
  explicit KeptLayer(mx::array x) : input(std::move(x)) {}

  mx::array input;                 // [B, L, C]
  std::optional<mx::array> mixed;  // attention's result, [B, H, L, D]
  // As Stage has them; empty where not kept.
  std::vector<mx::array> heads;    // queries, keys, values: projected, or rotated where these need not be normed
  std::vector<mx::array> mlp;      // middle, gate, up; with `all`, what the last product is made of
  std::vector<mx::array> weights;  // attention's, a block of queries at a time; with `all`, where they are made
};

struct LayerBlocks {
  int queries = 1, tokens = 1;  // of each row
};

class LayerPass {
 public:
  // `norms`: DoRA's, parallel to the places that follow the layout; none: they are made block by block.
  LayerPass(const Decoder& decoder, const Parameters& parameters, const std::vector<mx::array>& norms,
            const Trained& trained, const AttentionMask& mask, const RopeTable& rope,
            const std::optional<Dropout>& dropout, LayerBlocks blocks, Pacer& pacer)
      : decoder_(decoder),
        parameters_(parameters),
        norms_(norms),
        trained_(trained),
        mask_(mask),
        rope_(rope),
        dropout_(dropout),
        blocks_(blocks),
        pacer_(pacer) {}

  struct Forward {
    mx::array output;  // [B, L, C]
    KeptLayer kept;
  };
  Forward forward(int64_t layer, const mx::array& x, Keep keep) const;

  struct Backward {
    std::optional<mx::array> input;    // the gradient of the half's input, where it is asked for
    std::map<int, mx::array> tensors;  // those of its trained tensors, by their position in Parameters: f32
  };
  // The MLP's half first, then attention's. `d`: the gradient of the half's output. Of what was kept, the MLP's is let
  // go of in its half, and attention's result is there after it.
  Backward mlp_backward(int64_t layer, KeptLayer& kept, mx::array d) const;
  Backward attention_backward(int64_t layer, KeptLayer kept, mx::array d, bool to_input = true) const;

 private:
  class Gradients;
  std::vector<mx::array> project(int64_t layer, const mx::array& x) const;
  bool only_turns(int64_t layer) const;
  std::vector<mx::array> rotate(int64_t layer, const std::vector<mx::array>& heads) const;
  std::vector<mx::array> rotated_heads(int64_t layer, const KeptLayer& kept) const;
  std::vector<mx::array> run(const Parameters& parameters, int64_t layer, Stage stage, Part tokens,
                             const std::vector<mx::array>& inputs) const;
  std::vector<mx::array> vjp(int64_t layer, Stage stage, Part tokens, const std::vector<mx::array>& inputs,
                             const std::vector<mx::array>& cotangents, Gradients& gradients) const;

  const Decoder& decoder_;
  const Parameters& parameters_;
  const std::vector<mx::array>& norms_;
  const Trained& trained_;
  const AttentionMask& mask_;
  const RopeTable& rope_;
  const std::optional<Dropout>& dropout_;
  LayerBlocks blocks_;
  Pacer& pacer_;
};

}  // namespace trunkline
