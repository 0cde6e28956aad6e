// The forward and backward pass of a micro-batch, layer by layer: gradients are handed over as soon as they exist, and
// those of all tensors never exist at once here.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "model/attention.h"
#include "model/decoder.h"
#include "plan/step_blocks.h"
#include "train/layer_pass.h"
#include "train/loss.h"
#include "train/pieces.h"
#include "train/trained.h"

namespace trunkline {

class LayerwisePass {
 public:
  // What is referred to must live as long; while backward runs, hand_over may change the tensors of pieces that it has
  // been given. `after_block` is called often: this thread gets on.
  LayerwisePass(const Decoder& decoder, const Parameters& parameters, Trained trained, const Batch& batch,
                const StepBlocks& blocks, std::function<void()> after_block = {});

  // Called before a layer's tensors are read for the first time: -1 before the embedding's, and the number of layers
  // before the norm's and the head's.
  void before_layer(std::function<void(int64_t)> wait) { before_layer_ = std::move(wait); }

  // The loss summed over the batch's targets.
  double forward();
  // The gradients of that sum; after forward, once.
  void backward(const HandOver& hand_over);

  // Several passes of one step, whose forward passes are made one after another: the head's gradient, where it is made
  // there, and DoRA's norms go from one to the next. For after the forward pass of the one `before`, and before this
  // one's.
  void go_on_from(LayerwisePass& before);
  // Instead of backward: the gradients of a piece, added to those of the passes that came after this one, if any. For
  // every piece of pieces_of in order, of each from the last pass to the first.
  std::vector<mx::array> gradients_of(const Piece& piece, std::vector<mx::array> others);

  // The same loss where no gradient will be asked for; instead of forward.
  double loss();

 private:
  LayerPass layer_pass();
  bool is_trained(int tensor) const { return trained_[static_cast<size_t>(tensor)]; }
  Keep keep_of(int64_t layer) const;
  void run_layers(bool keep);
  void make_norms(int64_t layer);
  Parameters with_norms() const;
  mx::array last_output_gradient();
  std::vector<mx::array> next_half();
  mx::array head_gradient(int64_t row, int64_t rows, std::vector<mx::array> others);
  std::vector<mx::array> embedding_adapter_gradients(const std::vector<int>& tensors, const mx::array& d);
  mx::array add_embedding_gradient(mx::array gradient, const mx::array& d, int64_t row) const;

  const Decoder& decoder_;
  const Parameters& parameters_;
  const Trained trained_;
  const Batch& batch_;
  StepBlocks blocks_;
  int64_t lowest_;  // layer that a gradient passes
  bool to_embedding_ = false;
  std::vector<int> head_tensors_;  // trained ones of the head's adapter
  Pacer pacer_;
  std::function<void(int64_t)> before_layer_ = [](int64_t) {};
  std::vector<int32_t> ids_, targets_;
  std::optional<RopeTable> rope_;
  std::vector<mx::array> norms_;  // DoRA's, which are the same for all blocks
  bool given_norms_ = false;
  std::vector<KeptLayer> kept_;
  // Where targets are predicted: the last layer's output [T, C] (during forward), its gradient, and for the head's own
  // gradient the final norm of it (the norm's weight may be updated before) and log(sum(exp(logits))) [T, 1].
  std::optional<mx::array> states_, states_gradient_, normed_, log_sums_;
  std::optional<mx::array> norm_gradient_, whole_head_gradient_;
  std::vector<mx::array> head_gradients_;  // parallel to head_tensors_
  // In the backward pass: the gradient [B, L, C] of the input of the half at this place, counted along the forward
  // pass.
  std::optional<mx::array> input_gradient_;
  int64_t place_ = -1;  // the backward pass has not begun
};

}  // namespace trunkline
