// How an all-reduce, or any collective where some ranks have no path to each other, goes about it.
#pragma once

#include <cstdint>

namespace trunkline {

// The values travel between ranks: never renumber.
enum class Algorithm : uint8_t {
  automatic = 0,
  mesh = 1,       // reduce-scatter, then all-gather, between all pairs
  broadcast = 2,  // everyone sends all to everyone
  ring = 3        // from neighbour to neighbour, in both directions; other collectives go this way with it
};

}  // namespace trunkline
