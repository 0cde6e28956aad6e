// Inputs for tests of collectives, and what must come of them, by plain loops.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "comm/reduce.h"
#include "plan/collectives.h"

namespace trunkline::testing {

using Buffer = std::vector<std::byte>;
constexpr Reduction kReductions[] = {Reduction::sum, Reduction::max, Reduction::min};

// Rank `rank`'s input: any bits for integers, small numbers for floats, so that a sum in the wrong order shows.
inline Buffer input_of(int rank, size_t count, Dtype dtype) {
  Random random(static_cast<uint64_t>(rank) * 1000 + count);
  Buffer bytes(count * size_of(dtype));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random.next();
    std::byte* const to = bytes.data() + i * size_of(dtype);
    if (dtype == Dtype::f32) {
      const float value = static_cast<float>(static_cast<int64_t>(bits) >> 20) * 0x1p-30f;
      std::memcpy(to, &value, sizeof value);
    } else if (dtype == Dtype::f16 || dtype == Dtype::bf16) {
      // An exponent around that of 1, any sign and mantissa.
      const uint16_t exponent = dtype == Dtype::f16 ? 15 << 10 : 127 << 7;
      const uint16_t value = static_cast<uint16_t>((bits & (dtype == Dtype::f16 ? 0x83ff : 0x807f)) | exponent);
      std::memcpy(to, &value, sizeof value);
    } else {
      std::memcpy(to, &bits, size_of(dtype));
    }
  }
  return bytes;
}

// Every rank's input and what reductions make of them, made once.
struct Case {
  std::vector<Buffer> inputs;
  std::array<Buffer, 3> reduced;  // by Reduction
  std::array<Buffer, 3> by_ring;  // the same, in the order of a ring: of an all-reduce,
  Buffer scattered_by_ring;       // and of a scatter of the sum, all blocks of it

  const Buffer& of(Algorithm algorithm, Reduction reduction) const {
    return (algorithm == Algorithm::ring ? by_ring : reduced)[static_cast<size_t>(reduction)];
  }
  const Buffer& scattered(Algorithm algorithm) const {
    return algorithm == Algorithm::ring ? scattered_by_ring : reduced[static_cast<size_t>(Reduction::sum)];
  }
};

// Reduces a block that belongs to rank `owner`: each half in one direction, from the rank behind it all the way round.
inline void reduce_by_ring(const std::vector<Buffer>& inputs, Reduction reduction, Dtype dtype, size_t owner, bool up,
                           Range block, Buffer& out) {
  const size_t ranks = inputs.size();
  std::vector<const std::byte*> pointers;
  for (size_t i = 1; i <= ranks; ++i) {
    pointers.push_back(inputs[(owner + (up ? i : ranks - i)) % ranks].data() + block.begin);
  }
  reduce_plain(reduction, dtype, pointers, out.data() + block.begin, block.size() / size_of(dtype));
}

inline Range within(Range outer, Range inner) { return {outer.begin + inner.begin, outer.begin + inner.end}; }

inline Buffer all_reduced_by_ring(const std::vector<Buffer>& inputs, Reduction reduction, Dtype dtype) {
  const size_t ranks = inputs.size(), bytes = inputs[0].size(), directions = ranks > 2 ? 2 : 1;
  Buffer out(bytes);
  for (size_t d = 0; d < directions; ++d) {
    const Range half = part_of(bytes, directions, d);
    for (size_t owner = 0; owner < ranks; ++owner) {
      const Range chunk = within(half, part_of(half.size(), ranks, owner));
      reduce_by_ring(inputs, reduction, dtype, owner, d == 0, chunk, out);
    }
  }
  return out;
}

inline Buffer summed_blocks_by_ring(const std::vector<Buffer>& inputs, Dtype dtype) {
  const size_t ranks = inputs.size(), block = inputs[0].size() / ranks, directions = ranks > 2 ? 2 : 1;
  Buffer out(block * ranks);
  if (block % size_of(dtype) != 0) return out;  // no input of a scatter
  for (size_t owner = 0; owner < ranks; ++owner) {
    for (size_t d = 0; d < directions; ++d) {
      const Range part = within({owner * block, (owner + 1) * block}, part_of(block, directions, d));
      reduce_by_ring(inputs, Reduction::sum, dtype, owner, d == 0, part, out);
    }
  }
  return out;
}

inline const Case& case_of(int ranks, size_t count, Dtype dtype) {
  static std::mutex mutex;
  static std::map<std::tuple<int, size_t, Dtype>, Case> cases;
  const std::lock_guard lock(mutex);
  Case& result = cases[{ranks, count, dtype}];
  if (!result.inputs.empty()) return result;
  std::vector<const std::byte*> pointers;
  for (int rank = 0; rank < ranks; ++rank) result.inputs.push_back(input_of(rank, count, dtype));
  for (const Buffer& each : result.inputs) pointers.push_back(each.data());
  for (const Reduction reduction : kReductions) {
    Buffer& out = result.reduced[static_cast<size_t>(reduction)];
    out.resize(count * size_of(dtype));
    reduce_plain(reduction, dtype, pointers, out.data(), count);
    result.by_ring[static_cast<size_t>(reduction)] = all_reduced_by_ring(result.inputs, reduction, dtype);
  }
  result.scattered_by_ring = summed_blocks_by_ring(result.inputs, dtype);
  return result;
}

}  // namespace trunkline::testing
