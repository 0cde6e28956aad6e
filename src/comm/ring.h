// Collectives from neighbour to neighbour, in both directions at once, for ranks that have no path to all others.
//
// A ring's operation goes in steps. Each is an operation of the channel's, between a rank and its two neighbours, with
// a number of its own: the next ones after operation.number. Every block is cut in two, one part for each direction;
// two ranks, which have one path, use one direction.
//
// Blocks are given by place in the team. What they are summed in is the ring's order, which begins behind the rank that
// a block belongs to; so the bits of a sum depend on the blocks' sizes, the ranks and the direction, and on nothing
// else. Partial sums of 16-bit types travel in f32.
#pragma once

#include <array>
#include <vector>

#include "comm/algorithms.h"
#include "plan/collectives.h"

namespace trunkline {

class RingAlgorithm {
 public:
  // `order`: the team's places around the ring.
  RingAlgorithm(const Team& team, const std::vector<size_t>& order);

  // How many steps an operation takes: how many numbers it needs.
  static uint64_t steps(Operation::Kind kind, size_t ranks);

  // This rank, the one after it and the one before it: those that it meets.
  const Team& neighbours() const { return neighbours_; }

  // The part of a block that goes in each direction; the second is empty between two ranks.
  std::array<Range, 2> halves(size_t bytes) const;

  // By direction.
  using InBlocks = std::array<ConstBlocks, 2>;
  using OutBlocks = std::array<Blocks, 2>;

  // `out` may be `in`.
  void all_reduce(Channel& channel, Operation operation, const InBlocks& in, const OutBlocks& out) const;
  // `out`: this rank's block; it may be that of `in`.
  void reduce_scatter(Channel& channel, Operation operation, const InBlocks& in, const std::array<Bytes, 2>& out) const;
  // This rank's block lies in `out` already.
  void all_gather(Channel& channel, Operation operation, const OutBlocks& out) const;
  void broadcast(Channel& channel, const Operation& operation, const std::array<Bytes, 2>& data) const;
  void barrier(Channel& channel, Operation operation) const;

 private:
  struct Direction {
    size_t to, from;  // places among the neighbours
    bool up;          // to the rank that follows
  };

  size_t ranks() const { return order_.size(); }
  // The place of the rank `distance` behind this one, seen in that direction.
  size_t behind(const Direction& direction, size_t distance) const;
  void scatter_step(Channel& channel, const Operation& operation, size_t step, const InBlocks& in,
                    std::array<std::array<Bytes, 2>, 2>& partial, const std::array<Bytes, 2>& out) const;

  const std::vector<size_t> order_;
  size_t position_ = 0;  // of this rank in it
  Team neighbours_;
  std::vector<Direction> directions_;
};

}  // namespace trunkline
