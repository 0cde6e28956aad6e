#include "comm/collectives.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "comm/algorithms.h"
#include "plan/collectives.h"

namespace trunkline {
namespace {

constexpr size_t kPairsTold = 4;

ConstBytes bytes_of(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }
Bytes bytes_of(void* data, size_t size) { return {static_cast<std::byte*>(data), size}; }

bool overlap(ConstBytes a, ConstBytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

template <typename Byte>
std::span<Byte> at(std::span<Byte> bytes, Range range) {
  return bytes.subspan(range.begin, range.size());
}

// A lane's share of each of the equal blocks that a message is made of.
template <typename Byte>
std::vector<std::span<Byte>> slices(std::span<Byte> bytes, size_t blocks, const Job::Share& share) {
  std::vector<std::span<Byte>> result;
  const size_t block = bytes.size() / blocks;
  for (size_t i = 0; i < blocks; ++i) result.push_back(at(bytes.subspan(i * block, block), share.of(block)));
  return result;
}

// The near-equal blocks that a stripe is cut into, one a rank.
template <typename Byte>
std::vector<std::span<Byte>> segments(std::span<Byte> stripe, size_t ranks) {
  std::vector<std::span<Byte>> result;
  for (size_t i = 0; i < ranks; ++i) result.push_back(at(stripe, part_of(stripe.size(), ranks, i)));
  return result;
}

// --- the same for a ring, by direction: there, blocks are cut first, then shared among lanes

template <typename Byte>
std::array<std::span<Byte>, 2> ring_halves(const RingAlgorithm& ring, std::span<Byte> block, const Job::Share& share) {
  std::array<std::span<Byte>, 2> result;
  for (size_t d = 0; d < 2; ++d) {
    const std::span<Byte> half = at(block, ring.halves(block.size())[d]);
    result[d] = at(half, share.of(half.size()));
  }
  return result;
}

template <typename Byte>
std::array<std::vector<std::span<Byte>>, 2> ring_slices(const RingAlgorithm& ring, std::span<Byte> bytes, size_t blocks,
                                                        const Job::Share& share) {
  std::array<std::vector<std::span<Byte>>, 2> result;
  const size_t block = bytes.size() / blocks;
  for (size_t i = 0; i < blocks; ++i) {
    const auto halves = ring_halves(ring, bytes.subspan(i * block, block), share);
    for (size_t d = 0; d < 2; ++d) result[d].push_back(halves[d]);
  }
  return result;
}

template <typename Byte>
std::array<std::vector<std::span<Byte>>, 2> ring_segments(const RingAlgorithm& ring, std::span<Byte> bytes,
                                                          size_t ranks, const Job::Share& share) {
  std::array<std::vector<std::span<Byte>>, 2> result;
  for (size_t d = 0; d < 2; ++d) {
    for (const std::span<Byte> chunk : segments(at(bytes, ring.halves(bytes.size())[d]), ranks)) {
      result[d].push_back(at(chunk, share.of(chunk.size())));
    }
  }
  return result;
}

}  // namespace

Collectives::Collectives(Job& job, std::shared_ptr<const Team> team, uint32_t group)
    : job_(job), team_(std::move(team)), group_(group), transfers_(team_->ranks.size(), 0) {
  const Paths paths = paths_among(job.paths(), team_->ranks);
  cables_ = fewest_cables(paths);
  const Algorithm wanted = job.algorithm();
  const bool complete = missing_pairs(paths).empty();
  if (ranks() > 1 && (wanted == Algorithm::ring || (wanted == Algorithm::automatic && !complete))) find_ring(paths);
  if (wanted != Algorithm::automatic && wanted != Algorithm::ring && !complete) {
    unserved_ = fmt::format("algorithm {} needs a cable between every two ranks; there is none between {}",
                            name_of(wanted), pairs_text(paths));
  }
}

void Collectives::find_ring(const Paths& paths) {
  const std::vector<size_t> order = ring_order(paths);
  if (!order.empty()) {
    ring_ = std::make_shared<const RingAlgorithm>(*team_, order);
    return;
  }
  unserved_ = fmt::format(
      "no ring along the cables joins all ranks: there is no cable between {}. Join every two ranks, or all in a "
      "circle",
      pairs_text(paths));
}

std::string Collectives::pairs_text(const Paths& paths) const {
  const auto missing = missing_pairs(paths);
  std::vector<std::string> texts;
  for (const auto& [a, b] : missing) {
    if (texts.size() == kPairsTold) {
      texts.push_back(fmt::format("{} more pairs", missing.size() - kPairsTold));
      break;
    }
    texts.push_back(fmt::format("{} and {}", job_.watch().who(team_->ranks[a]), job_.watch().who(team_->ranks[b])));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void Collectives::check_rank(const char* call, int rank) const {
  if (rank < 0 || static_cast<size_t>(rank) >= ranks())
    fail(ErrorKind::input, "{}: rank {} of {}", call, rank, ranks());
}

// Refuses what no memory could hold, before it overflows.
void Collectives::check_message(const char* call, size_t count, Dtype dtype) const {
  if (size_of(dtype) == 0) fail(ErrorKind::input, "{}: no such dtype ({})", call, static_cast<int>(dtype));
  if (count > SIZE_MAX / 2 / size_of(dtype) / ranks())
    fail(ErrorKind::input, "{} of {} {}", call, count, name_of(dtype));
}

Operation Collectives::collective(Operation::Kind kind, size_t count, Dtype dtype) {
  check_message("a collective", count, dtype);
  if (!unserved_.empty()) fail(ErrorKind::unsupported, "{}", unserved_);
  const uint64_t number = collectives_ + 1;
  collectives_ += ring_ ? RingAlgorithm::steps(kind, ranks()) : 1;
  return {.number = number,
          .count = count,
          .kind = kind,
          .dtype = dtype,
          .algorithm = ring_ ? Algorithm::ring : Algorithm::mesh,
          .group = group_};
}

Operation Collectives::transfer(Operation::Kind kind, size_t count, Dtype dtype, int peer) {
  const char* const call = kind == Operation::Kind::send ? "send" : "recv";
  check_message(call, count, dtype);
  check_rank(call, peer);
  const size_t place = static_cast<size_t>(peer);
  if (place == team_->place) fail(ErrorKind::input, "{}: rank {} is this rank itself", call, peer);
  const size_t rank = team_->ranks[place];
  if (job_.paths()[team_->ranks[team_->place]][rank] == 0) {
    fail(ErrorKind::unsupported, "{}: there is no cable between {} and {}", call,
         job_.watch().who(team_->ranks[team_->place]), job_.watch().who(rank));
  }
  return {.number = ++transfers_[place], .count = count, .kind = kind, .dtype = dtype, .root = peer, .group = group_};
}

// The call that runs f(channel, team, share) on each lane that a message of so many bytes has a stripe for.
template <typename F>
Collectives::Call Collectives::call(const Operation& operation, size_t bytes, F f) const {
  return [&job = job_, team = team_, ring = ring_, operation, bytes, f = std::move(f)] {
    // In a ring, ranks that are no neighbours may have had all of it, and have left, before this one begins.
    const Team& met = operation.algorithm == Algorithm::ring ? ring->neighbours() : *team;
    job.run(operation, met, bytes, [&](Channel& channel, const Job::Share& share) { f(channel, *team, share); });
  };
}

Collectives::Call Collectives::all_reduce(Reduction reduction, const void* in, void* out, size_t count, Dtype dtype) {
  check_message("a collective", count, dtype);
  const ConstBytes from = bytes_of(in, count * size_of(dtype));
  const Bytes to = bytes_of(out, count * size_of(dtype));
  if (in != out && overlap(from, to)) {
    fail(ErrorKind::input, "an all-reduce of {} {}: the buffers overlap without being the same", count, name_of(dtype));
  }
  Operation operation = collective(Operation::Kind::all_reduce, count, dtype);
  operation.reduction = reduction;
  if (ring_) {
    return call(operation, from.size(), [=, ring = ring_](Channel& channel, const Team& team, const Job::Share& share) {
      ring->all_reduce(channel, operation, ring_segments(*ring, from, team.ranks.size(), share),
                       ring_segments(*ring, to, team.ranks.size(), share));
    });
  }
  operation.algorithm = job_.algorithm() == Algorithm::mesh || job_.algorithm() == Algorithm::broadcast
                            ? job_.algorithm()
                            : all_reduce_algorithm(ranks(), from.size(), cables_, true);
  return call(operation, from.size(), [=](Channel& channel, const Team& team, const Job::Share& share) {
    const ConstBytes own = at(from, share.of(from.size()));
    const Bytes result = at(to, share.of(to.size()));
    if (operation.algorithm == Algorithm::broadcast) {
      broadcast_all_reduce(channel, operation, team, own, result);
    } else {
      const size_t ranks = team.ranks.size();
      mesh_all_reduce(channel, operation, team, segments(own, ranks), segments(result, ranks));
    }
  });
}

Collectives::Call Collectives::all_gather(const void* in, void* out, size_t count, Dtype dtype) {
  const Operation operation = collective(Operation::Kind::all_gather, count, dtype);
  const size_t block = operation.bytes();
  const Bytes all = bytes_of(out, block * ranks());
  const Bytes own_block = all.subspan(block * team_->place, block);
  const ConstBytes own = bytes_of(in, block);
  // What arrives would overwrite what is still to be sent, or lies behind this rank's block in a ring.
  const bool moves = own.data() != own_block.data() && (ring_ || overlap(own, all));
  const ConstBytes from = moves ? ConstBytes(own_block) : own;
  Call gather;
  if (ring_) {
    gather = call(operation, block, [=, ring = ring_](Channel& channel, const Team& team, const Job::Share& share) {
      ring->all_gather(channel, operation, ring_slices(*ring, all, team.ranks.size(), share));
    });
  } else {
    gather = call(operation, block, [=](Channel& channel, const Team& team, const Job::Share& share) {
      trunkline::all_gather(channel, operation, team, at(from, share.of(block)), slices(all, team.ranks.size(), share));
    });
  }
  if (!moves || block == 0) return gather;
  return [=] {
    std::memmove(own_block.data(), own.data(), own.size());
    gather();
  };
}

Collectives::Call Collectives::sum_scatter(const void* in, void* out, size_t count, Dtype dtype) {
  const Operation operation = collective(Operation::Kind::sum_scatter, count, dtype);
  const size_t block = operation.bytes();
  const ConstBytes all = bytes_of(in, block * ranks());
  const Bytes result = bytes_of(out, block);
  const auto scatter_to = [=, this](Bytes sum) -> Call {
    if (ring_) {
      return call(operation, block, [=, ring = ring_](Channel& channel, const Team& team, const Job::Share& share) {
        ring->reduce_scatter(channel, operation, ring_slices(*ring, all, team.ranks.size(), share),
                             ring_halves(*ring, sum, share));
      });
    }
    return call(operation, block, [=](Channel& channel, const Team& team, const Job::Share& share) {
      reduce_scatter(channel, operation, team, slices(all, team.ranks.size(), share), at(sum, share.of(block)));
    });
  };
  if (!overlap(result, all) || result.data() == all.data() + block * team_->place) return scatter_to(result);
  // The sum would overwrite what is still to be sent.
  const auto apart = std::make_shared<std::vector<std::byte>>(block);
  return [=, scatter = scatter_to(*apart)] {
    scatter();
    std::memcpy(result.data(), apart->data(), result.size());
  };
}

Collectives::Call Collectives::broadcast(void* data, size_t count, Dtype dtype, int root) {
  check_rank("broadcast", root);
  Operation operation = collective(Operation::Kind::broadcast, count, dtype);
  operation.root = root;
  const Bytes all = bytes_of(data, operation.bytes());
  if (ring_) {
    return call(operation, all.size(), [=, ring = ring_](Channel& channel, const Team&, const Job::Share& share) {
      ring->broadcast(channel, operation, ring_halves(*ring, all, share));
    });
  }
  return call(operation, all.size(), [=](Channel& channel, const Team& team, const Job::Share& share) {
    trunkline::broadcast(channel, operation, team, at(all, share.of(all.size())));
  });
}

Collectives::Call Collectives::send(const void* data, size_t count, Dtype dtype, int to) {
  const Operation operation = transfer(Operation::Kind::send, count, dtype, to);
  const ConstBytes all = bytes_of(data, operation.bytes());
  return call(operation, all.size(), [=](Channel& channel, const Team& team, const Job::Share& share) {
    trunkline::send(channel, operation, team, at(all, share.of(all.size())));
  });
}

Collectives::Call Collectives::receive(void* data, size_t count, Dtype dtype, int from) {
  const Operation operation = transfer(Operation::Kind::receive, count, dtype, from);
  const Bytes all = bytes_of(data, operation.bytes());
  return call(operation, all.size(), [=](Channel& channel, const Team& team, const Job::Share& share) {
    trunkline::receive(channel, operation, team, at(all, share.of(all.size())));
  });
}

Collectives::Call Collectives::barrier() {
  const Operation operation = collective(Operation::Kind::barrier, 0, Dtype::u8);
  return call(operation, 0, [=, ring = ring_](Channel& channel, const Team& team, const Job::Share&) {
    if (ring) {
      ring->barrier(channel, operation);
    } else {
      trunkline::barrier(channel, operation, team);
    }
  });
}

}  // namespace trunkline
