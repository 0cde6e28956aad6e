#include "comm/ring.h"

#include <algorithm>
#include <memory>

#include "comm/convert.h"
#include "comm/reduce.h"

namespace trunkline {
namespace {

// Sums of these travel in f32.
bool widens(const Operation& operation) {
  return operation.reduction == Reduction::sum && (operation.dtype == Dtype::f16 || operation.dtype == Dtype::bf16);
}

size_t partial_bytes(const Operation& operation, size_t bytes) { return widens(operation) ? 2 * bytes : bytes; }

// out = partial and own, reduced; the last time rounded to the dtype. `bytes`: of `own`.
void add(const Operation& operation, const std::byte* partial, const std::byte* own, size_t bytes, bool last,
         std::byte* out) {
  const size_t count = bytes / size_of(operation.dtype);
  if (!widens(operation)) {
    const std::array<const std::byte*, 2> inputs{partial, own};
    return reduce(operation.reduction, operation.dtype, inputs, out, count);
  }
  constexpr size_t kPiece = 2048;  // stays in the nearest cache
  alignas(64) std::array<std::byte, kPiece * sizeof(float)> wide;
  for (size_t done = 0; done < count; done += kPiece) {
    const size_t piece = std::min(kPiece, count - done);
    widen(operation.dtype, own + 2 * done, wide.data(), piece);
    const std::array<const std::byte*, 2> inputs{partial + 4 * done, wide.data()};
    reduce(Reduction::sum, Dtype::f32, inputs, last ? wide.data() : out + 4 * done, piece);
    if (last) narrow(operation.dtype, wide.data(), out + 2 * done, piece);
  }
}

std::unique_ptr<std::byte[]> memory(size_t bytes) { return std::unique_ptr<std::byte[]>(new std::byte[bytes]); }

}  // namespace

RingAlgorithm::RingAlgorithm(const Team& team, const std::vector<size_t>& order) : order_(order) {
  position_ = static_cast<size_t>(std::find(order.begin(), order.end(), team.place) - order.begin());
  const size_t next = order[(position_ + 1) % ranks()], before = order[(position_ + ranks() - 1) % ranks()];
  neighbours_.ranks = {team.ranks[team.place], team.ranks[next]};
  directions_.push_back({1, 1, true});
  if (ranks() == 2) return;
  neighbours_.ranks.push_back(team.ranks[before]);
  directions_ = {{1, 2, true}, {2, 1, false}};
}

uint64_t RingAlgorithm::steps(Operation::Kind kind, size_t ranks) {
  switch (kind) {
    case Operation::Kind::all_reduce: return 2 * (ranks - 1);
    case Operation::Kind::all_gather:
    case Operation::Kind::sum_scatter: return ranks - 1;
    case Operation::Kind::barrier: return ranks / 2;
    default: return 1;
  }
}

std::array<Range, 2> RingAlgorithm::halves(size_t bytes) const {
  if (directions_.size() == 1) return {Range{0, bytes}, Range{bytes, bytes}};
  return {part_of(bytes, 2, 0), part_of(bytes, 2, 1)};
}

size_t RingAlgorithm::behind(const Direction& direction, size_t distance) const {
  const size_t back = distance % ranks();
  return order_[(position_ + (direction.up ? ranks() - back : back)) % ranks()];
}

// A block starts from the rank after the one that it belongs to, and ends there.
void RingAlgorithm::reduce_scatter(Channel& channel, Operation operation, const InBlocks& in,
                                   const std::array<Bytes, 2>& out) const {
  // What is sent in a step, and what is made for the next, by direction.
  std::array<std::array<std::unique_ptr<std::byte[]>, 2>, 2> owned;
  std::array<std::array<Bytes, 2>, 2> partial;
  for (size_t d = 0; d < directions_.size(); ++d) {
    size_t most = 0;
    for (const ConstBytes& block : in[d]) most = std::max(most, partial_bytes(operation, block.size()));
    for (size_t i = 0; i < 2; ++i) {
      owned[i][d] = memory(most);
      partial[i][d] = {owned[i][d].get(), most};
    }
  }
  for (size_t step = 0; step + 1 < ranks(); ++step) {
    scatter_step(channel, operation, step, in, partial, out);
    std::swap(partial[0], partial[1]);
    ++operation.number;
  }
}

void RingAlgorithm::scatter_step(Channel& channel, const Operation& operation, size_t step, const InBlocks& in,
                                 std::array<std::array<Bytes, 2>, 2>& partial, const std::array<Bytes, 2>& out) const {
  const bool last = step + 2 == ranks();
  channel.open(operation, neighbours_);
  std::array<size_t, 2> expected{};
  for (size_t d = 0; d < directions_.size(); ++d) {
    const Direction& direction = directions_[d];
    const ConstBytes given = in[d][behind(direction, step + 1)];
    ConstBytes sent = partial[0][d].first(partial_bytes(operation, given.size()));
    if (step == 0 && widens(operation)) {
      const auto span = channel.stopwatch().in(Activity::copy);
      widen(operation.dtype, given.data(), partial[0][d].data(), given.size() / 2);
    } else if (step == 0) {
      sent = given;
    }
    channel.send({&direction.to, 1}, Part::scatter, sent);
    expected[d] = partial_bytes(operation, in[d][behind(direction, step + 2)].size());
    channel.stage(direction.from, expected[d]);
  }
  for (size_t offset = 0; offset < std::max(expected[0], expected[1]); offset += channel.frame_bytes()) {
    const auto frames = channel.collect(offset, nullptr);
    const auto span = channel.stopwatch().in(Activity::reduce);
    for (size_t d = 0; d < directions_.size(); ++d) {
      if (offset >= expected[d]) continue;
      const size_t bytes = std::min(channel.frame_bytes(), expected[d] - offset);
      const size_t scale = widens(operation) ? 2 : 1;  // bytes of a partial sum, of an element
      const std::byte* const own = in[d][behind(directions_[d], step + 2)].data() + offset / scale;
      std::byte* const sum = last ? out[d].data() + offset / scale : partial[1][d].data() + offset;
      add(operation, frames[directions_[d].from], own, bytes / scale, last, sum);
    }
  }
  channel.close();
}

void RingAlgorithm::all_gather(Channel& channel, Operation operation, const OutBlocks& out) const {
  for (size_t step = 0; step + 1 < ranks(); ++step) {
    channel.open(operation, neighbours_);
    for (size_t d = 0; d < directions_.size(); ++d) {
      const Direction& direction = directions_[d];
      channel.send({&direction.to, 1}, Part::gather, out[d][behind(direction, step)]);
      channel.receive(direction.from, Part::gather, out[d][behind(direction, step + 1)]);
    }
    channel.close();
    ++operation.number;
  }
}

void RingAlgorithm::all_reduce(Channel& channel, Operation operation, const InBlocks& in, const OutBlocks& out) const {
  const size_t own = order_[position_];
  reduce_scatter(channel, operation, in, {out[0][own], out[1][own]});
  operation.number += ranks() - 1;
  all_gather(channel, operation, out);
}

// One step: each rank passes on what has come while more is coming.
void RingAlgorithm::broadcast(Channel& channel, const Operation& operation, const std::array<Bytes, 2>& data) const {
  const size_t root = static_cast<size_t>(operation.root);
  channel.open(operation, neighbours_);
  std::array<bool, 2> receives{}, passes_on{};
  for (size_t d = 0; d < directions_.size(); ++d) {
    const Direction& direction = directions_[d];
    receives[d] = behind(direction, 0) != root;
    const bool sends = behind(direction, ranks() - 1) != root;  // the next is not where it began
    passes_on[d] = receives[d] && sends;
    if (receives[d]) channel.receive(direction.from, Part::gather, data[d]);
    if (!sends) continue;
    channel.announce(direction.to, Part::gather, data[d].size());
    if (!receives[d]) channel.send({&direction.to, 1}, Part::gather, data[d]);
  }
  for (size_t offset = 0; offset < std::max(data[0].size(), data[1].size()); offset += channel.frame_bytes()) {
    for (size_t d = 0; d < directions_.size(); ++d) {
      if (!passes_on[d] || offset >= data[d].size()) continue;
      const size_t bytes = std::min(channel.frame_bytes(), data[d].size() - offset);
      channel.await_received(directions_[d].from, Part::gather, offset + bytes);
      channel.send({&directions_[d].to, 1}, Part::gather, data[d].subspan(offset, bytes));
    }
  }
  channel.close();
}

// After each step, the ranks that are known to have come are those of one more step on both sides.
void RingAlgorithm::barrier(Channel& channel, Operation operation) const {
  for (uint64_t step = 0; step < steps(operation.kind, ranks()); ++step) {
    channel.open(operation, neighbours_);
    channel.close();
    ++operation.number;
  }
}

}  // namespace trunkline
