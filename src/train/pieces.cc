#include "train/pieces.h"

#include <fmt/format.h>

#include <utility>

#include "model/parts.h"

namespace trunkline {
namespace {

// A tensor in pieces of `step` rows.
void cut(std::vector<Piece>& pieces, const Decoder& decoder, int tensor, int64_t step) {
  const TensorShape& shape = decoder.layout()[static_cast<size_t>(tensor)];
  const int rows = narrow(shape.dims.front());
  for (const auto& [begin, end] : parts_of(rows, narrow(step))) {
    const bool whole = begin == 0 && end == rows;
    pieces.push_back({.name = whole ? shape.name : fmt::format("{}[{}:{}]", shape.name, begin, end),
                      .rows = {{static_cast<size_t>(tensor), begin, end - begin}}});
  }
}

// Trained tensors of an adapter, as one piece named after its module.
void add_adapter(std::vector<Piece>& pieces, const Decoder& decoder, const Trained& trained, const LinearIndex& at) {
  Piece piece;
  for (const int tensor : at.adapter_tensors()) {
    const auto place = static_cast<size_t>(tensor);
    const TensorShape& shape = decoder.layout()[place];
    if (piece.name.empty()) piece.name = shape.name.substr(0, shape.name.find(".lora_"));
    if (trained[place]) piece.rows.push_back({place, 0, shape.dims.front()});
  }
  if (!piece.rows.empty()) pieces.push_back(std::move(piece));
}

const char* name_of(Half half) { return half == Half::mlp ? "mlp" : "attention"; }

}  // namespace

std::vector<Piece> pieces_of(const Decoder& decoder, const Trained& trained, int64_t vocab_rows) {
  std::vector<Piece> pieces;
  const auto is_trained = [&](int tensor) { return trained[static_cast<size_t>(tensor)]; };
  if (!decoder.shape().tied && is_trained(decoder.head_index())) {
    cut(pieces, decoder, decoder.head_index(), vocab_rows);
  }
  add_adapter(pieces, decoder, trained, decoder.head_layer());
  if (is_trained(decoder.norm_index())) cut(pieces, decoder, decoder.norm_index(), decoder.shape().hidden);
  for (int64_t layer = decoder.shape().layers - 1; layer >= 0; --layer) {
    for (const Half half : {Half::mlp, Half::attention}) {
      Piece piece{.name = fmt::format("layer {} {}", layer, name_of(half)), .rows = {}, .layer = layer, .half = half};
      for (const int tensor : decoder.half_tensors(layer, half)) {
        const auto place = static_cast<size_t>(tensor);
        if (trained[place]) piece.rows.push_back({place, 0, decoder.layout()[place].dims.front()});
      }
      if (!piece.rows.empty()) pieces.push_back(std::move(piece));
    }
  }
  if (is_trained(decoder.embedding_index())) cut(pieces, decoder, decoder.embedding_index(), vocab_rows);
  add_adapter(pieces, decoder, trained, decoder.embedding_layer());
  return pieces;
}

void hand_over_zeros(const Decoder& decoder, const Trained& trained, int64_t vocab_rows, const HandOver& hand_over) {
  for (const Piece& piece : pieces_of(decoder, trained, vocab_rows)) {
    std::vector<mx::array> zeros;
    for (const TensorRows& rows : piece.rows) {
      const std::vector<int64_t>& dims = decoder.layout()[rows.tensor].dims;
      mx::Shape shape(dims.begin(), dims.end());
      shape.front() = static_cast<int>(rows.rows);
      zeros.push_back(mx::zeros(shape, mx::float32));
    }
    mx::eval(zeros);
    hand_over(piece, std::move(zeros));
  }
}

}  // namespace trunkline
