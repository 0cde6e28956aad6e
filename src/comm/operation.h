// Operation: one call of a collective, a send or a receive, as ranks announce it to each other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trunkline/group.h"

namespace trunkline {

// The values travel between ranks: never renumber.
enum class Reduction : uint8_t { sum = 0, max = 1, min = 2 };

// As people give it: "mesh".
std::string_view name_of(Algorithm algorithm);

struct Operation {
  enum class Kind : uint8_t {
    all_reduce = 0,
    all_gather = 1,
    sum_scatter = 2,
    broadcast = 3,
    send = 4,
    receive = 5,
    barrier = 6
  };

  // Collectives (in a ring, their steps) are counted for the whole group, sends and receives for each pair of its
  // ranks.
  uint64_t number = 0;
  uint64_t count = 0;  // elements
  Kind kind = Kind::barrier;
  Dtype dtype = Dtype::u8;
  Reduction reduction = Reduction::sum;
  Algorithm algorithm = Algorithm::mesh;  // of an all-reduce; of any collective in a ring
  int32_t root = -1;                      // of a broadcast; of a send or a receive, the other rank: its place
  uint32_t group = 0;                     // 0: all ranks of the job; others come from split()

  bool pairwise() const { return kind == Kind::send || kind == Kind::receive; }
  uint64_t bytes() const { return count * size_of(dtype); }
  std::string text() const;  // "all_sum of 1000 float32 by mesh (operation 7)"
  bool operator==(const Operation&) const = default;
};

// The operation of the rank at `place` as those that take part in it with that rank call it.
Operation as_peers_call(const Operation& own, int place);

// The message of a mismatch: what the one called, and the other.
std::string disagreement(const std::string& one, const Operation& ones, const std::string& other,
                         const Operation& others);

// Whether the operations of two ranks, by their places in this rank's group, are one and the same, seen from its two
// ends.
bool matches(const Operation& own, int place, const Operation& theirs, int peer);

}  // namespace trunkline
