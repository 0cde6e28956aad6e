// Dropout whose mask is a hash of what it falls on (step, row, token, module, feature), so that neither computing it
// again nor how rows are cut into blocks, batches and ranks changes it.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <span>

namespace trunkline {

namespace mx = mlx::core;

// The low bits of a number mixed into all (a permutation; constants by Chris Wellons, "lowbias32").
constexpr uint32_t mixed(uint32_t x) {
  x ^= x >> 16;
  x *= 0x21f0aaadu;
  x ^= x >> 15;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

class Dropout {
 public:
  // `keys` [B, L] (uint32): one a token, equal only where the masks are to be equal.
  Dropout(double rate, mx::array keys) : rate_(rate), keys_(std::move(keys)) {}

  // Of the tokens [begin, end) of each row.
  Dropout part(int begin, int end) const;
  // Of tokens of the flattened rows, as one row.
  Dropout at(const mx::array& places) const;

  // x [..., F], of as many tokens as there are keys, as the input of module number `module`: an entry becomes 0 with
  // probability `rate`, or is divided by 1 - rate.
  mx::array apply(const mx::array& x, uint32_t module) const;

 private:
  double rate_;
  mx::array keys_;
};

}  // namespace trunkline
