// --shard-optimizer: each rank updates a part of every tensor, and the optimizer's state of that part lives on it
// alone. Of a piece's rows of a matrix, each rank has an equal share, in rank order; vectors, and the few rows that do
// not divide, are everyone's: all ranks update them, alike.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "model/decoder.h"
#include "train/pieces.h"
#include "trunkline/group.h"

namespace trunkline {

class Shards {
 public:
  // `pieces`: those of the backward pass; `layout`: of all tensors.
  Shards(std::vector<Piece> pieces, std::vector<TensorShape> layout, int rank, int ranks);

  // What this rank updates.
  struct Part {
    TensorRows rows;
    bool everyones = false;
  };
  const std::vector<Part>& parts() const { return parts_; }
  // The parts as tensors of their own, for an optimizer; and what they are of the tensors.
  std::vector<TensorShape> layout() const;
  Parameters of(const Parameters& tensors) const;

  const std::vector<Piece>& pieces() const { return pieces_; }
  const std::vector<TensorShape>& tensors() const { return tensors_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Rows of a piece that each rank has.
  int64_t each(const TensorRows& rows) const;
  // Positions in parts() of what this rank has of rows of a piece.
  const std::vector<size_t>& parts_of(const TensorRows& rows) const;
  // A piece as parts: its rows are whole tensors of layout().
  Piece as_parts(const Piece& piece) const;

 private:
  std::vector<Piece> pieces_;
  std::vector<TensorShape> tensors_;
  int rank_, ranks_;
  std::vector<Part> parts_;
  std::map<std::pair<size_t, int64_t>, std::vector<size_t>> found_;  // by tensor and first row of a piece
};

// This rank's parts of the weights, in f32, and how the model comes by all of them.
class ShardedWeights {
 public:
  ShardedWeights(Group& group, const Decoder& decoder, const Shards& shards, const Parameters& tensors);
  // Waits for what is under way: it writes into the tensors.
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  const Shards& shards() const { return shards_; }
  // Parallel to the parts; once it has been changed, the tensors are behind.
  Parameters& own() { return own_; }
  void changed() { behind_ = true; }

  // Begins to gather the tensors that are behind, in the order in which a forward pass needs them. Until finish has
  // returned, a tensor may be read after wait_for its layer, and none be replaced. The group's later calls queue up
  // behind it.
  void start(Parameters& tensors);
  // `layer`: -1 for what comes before the layers, their number for what comes after.
  void wait_for(int64_t layer);
  void finish() { wait_for(layers_); }

 private:
  Group& group_;
  const Shards& shards_;
  Parameters own_;
  bool behind_ = false;
  const int64_t layers_;
  std::vector<int64_t> needed_;           // by piece: as wait_for has it
  std::vector<std::vector<Work>> works_;  // by piece
  std::vector<mx::array> sent_;           // own parts in the tensors' dtype, while they travel
};

// Whole tensors from what each rank has of them, as rank 0 needs them for a snapshot: `own` is parallel to the parts.
// The other ranks get none. Parallel to the tensors; nothing where a tensor is not trained.
Parameters gather_parts(Group& group, const Shards& shards, const Parameters& own);

// An optimizer's state by the names of the tensors, whole, on rank 0, from one of the parts. In the order of an
// optimizer that is not sharded.
using NamedArrays = std::vector<std::pair<std::string, mx::array>>;
NamedArrays gather_state(Group& group, const Shards& shards, const NamedArrays& own);
// The other way round: rank 0's `whole` is given to all, an array at a time, and each keeps its parts. `own`: of which
// names and shapes.
NamedArrays scatter_state(Group& group, const Shards& shards, const NamedArrays& whole, const NamedArrays& own);

}  // namespace trunkline
