// What a backward pass hands over at once: the tensors of half a layer, or rows of one.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/decoder.h"
#include "train/trained.h"

namespace trunkline {

// Rows `row` .. `row` + `rows` of a tensor (a vector's entries are its rows).
struct TensorRows {
  size_t tensor = 0;
  int64_t row = 0, rows = 0;
  bool operator==(const TensorRows&) const = default;
};
// What is handed over at once.
struct Piece {
  std::string name;  // "layer 3 mlp", "layer 3 attention", or a tensor's name, with rows where it is not all of them
  std::vector<TensorRows> rows;  // of trained tensors
  int64_t layer = -1;            // whose tensors they are; -1 for the others
  Half half = Half::attention;   // of that layer
  bool operator==(const Piece&) const = default;
};

// The pieces of a backward pass, in order: the head from its first row on (unless tied), the final norm, the layers
// from last to first, each one's MLP before its attention, the embedding. Head and embedding are cut after each
// `vocab_rows`. Those without anything trained are left out.
std::vector<Piece> pieces_of(const Decoder& decoder, const Trained& trained, int64_t vocab_rows);

// Takes a piece and its gradients (f32, or a single product of the weights' dtype; queued on the device; parallel to
// its rows).
using HandOver = std::function<void(const Piece&, std::vector<mx::array>)>;

// Gradients of zero for every piece: what a rank without rows has to give.
void hand_over_zeros(const Decoder& decoder, const Trained& trained, int64_t vocab_rows, const HandOver& hand_over);

}  // namespace trunkline
