// The loss of a micro-batch and its gradient: sums over target tokens, so that however a step's rows are cut into
// micro-batches and ranks, the parts add up to the same thing. Whoever has the whole divides by the count of targets.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/attention.h"
#include "model/decoder.h"
#include "train/cross_entropy.h"
#include "train/dataset.h"
#include "train/trained.h"

namespace trunkline {

// Sequences as the model takes them: each a row or several one after the other, padded on the right, rows cut after the
// last token that predicts a target.
struct Batch {
  mx::array ids;        // [B, L] int32; padding is 0, which no position that counts can see
  mx::array positions;  // [T] int32: where in the flattened ids (row * L + column) a target is predicted
  mx::array targets;    // [T] int32: the id to predict there
  int64_t target_count = 0;
  mx::array places;      // [L] int32: where tokens stand in their row; [B, L] where rows share a sequence
  AttentionMask mask{};  // rows of one sequence see nothing of each other; empty where there are none such
  std::optional<mx::array> keys = std::nullopt;   // [B, L] uint32: of rows and places in them, for dropout
  std::optional<Dropout> dropout = std::nullopt;  // of adapters' inputs, in training
};

Batch make_batch(std::span<const std::vector<RowView>> sequences);
// Of a row each.
Batch make_batch(std::span<const RowView> rows);

// A decoder's head that is more than a matrix, at {x, tensors[i] ...} (positions in the layout; the others are taken
// from `parameters`, which must live as long).
HeadFunction head_function(const Decoder& decoder, const Parameters& parameters, std::vector<int> tensors = {},
                           std::optional<Dropout> dropout = std::nullopt);

// The batch's loss summed over its targets, as a lazy f32 scalar; for validation.
mx::array summed_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch);

struct LossAndGradients {
  mx::array loss;                    // summed over the targets, f32 scalar
  std::vector<mx::array> gradients;  // of that sum, parallel to the trained tensors and in their dtypes
};

// Lazy: evaluating `loss` runs the forward pass and the head's part of the backward pass; the layers' part runs once
// the gradients are evaluated, so the loss can be looked at before that is paid for.
LossAndGradients loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                    const Batch& batch);

}  // namespace trunkline
