#include "cli/bench_data.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace trunkline {
namespace {

constexpr size_t kBlock = 1024;  // elements that are worked on in cache
using Numbers = std::array<int64_t, kBlock>;

// SplitMix64 (prng.di.unimi.it), entered at any place of its sequence.
uint64_t hash(uint64_t index) {
  uint64_t z = index * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int number_bits(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return 13;
    case Dtype::f16:
    case Dtype::bf16: return 8;
    default: return 64;
  }
}

// Adds what `rank` has as elements begin, begin + 1, ...; sums wrap around.
void add_numbers(const BenchData& data, int rank, size_t begin, std::span<int64_t> sums) {
  const uint64_t first = hash(data.seed * 1024 + static_cast<uint64_t>(rank)) + begin;
  const int shift = 64 - number_bits(data.dtype);
  for (size_t i = 0; i < sums.size(); ++i) {
    const int64_t number = static_cast<int64_t>(hash(first + i)) >> shift;
    sums[i] = static_cast<int64_t>(static_cast<uint64_t>(sums[i]) + static_cast<uint64_t>(number));
  }
}

// The upper part of a float's bits, without the lowest `bits` of them; to nearest, ties to even.
uint32_t round_off(uint32_t value, int bits) {
  return (value + (1u << (bits - 1)) - 1 + ((value >> bits) & 1)) >> bits;
}

uint16_t to_bf16(float value) { return static_cast<uint16_t>(round_off(std::bit_cast<uint32_t>(value), 16)); }

uint16_t to_f16(float value) {  // of a whole number: zero, normal or too large
  const auto all = std::bit_cast<uint32_t>(value);
  const uint32_t sign = all >> 16 & 0x8000u, magnitude = all & 0x7fffffffu;
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  constexpr uint32_t kBias = (127 - 15) << 23, kInfinity = 0x7c00;
  return static_cast<uint16_t>(sign | std::min(round_off(magnitude - kBias, 13), kInfinity));
}

template <typename T, typename Convert>
void write(std::span<const int64_t> numbers, std::byte* to, Convert convert) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto element = static_cast<T>(convert(numbers[i]));
    std::memcpy(to + i * sizeof element, &element, sizeof element);
  }
}

void encode(Dtype dtype, std::span<const int64_t> numbers, std::byte* to) {
  const auto cut = [](int64_t number) { return number; };
  switch (dtype) {
    case Dtype::f32: return write<float>(numbers, to, [](int64_t number) { return static_cast<float>(number); });
    case Dtype::f16:
      return write<uint16_t>(numbers, to, [](int64_t number) { return to_f16(static_cast<float>(number)); });
    case Dtype::bf16:
      return write<uint16_t>(numbers, to, [](int64_t number) { return to_bf16(static_cast<float>(number)); });
    case Dtype::i8:
    case Dtype::u8: return write<uint8_t>(numbers, to, cut);
    case Dtype::i16:
    case Dtype::u16: return write<uint16_t>(numbers, to, cut);
    case Dtype::i32:
    case Dtype::u32: return write<uint32_t>(numbers, to, cut);
    case Dtype::i64:
    case Dtype::u64: return write<uint64_t>(numbers, to, cut);
  }
}

}  // namespace

void BenchData::fill(int rank, size_t begin, size_t count, std::byte* to) const {
  Numbers numbers;
  for (size_t done = 0; done < count; done += kBlock) {
    const std::span block(numbers.data(), std::min(kBlock, count - done));
    std::ranges::fill(block, 0);
    add_numbers(*this, rank, begin + done, block);
    encode(dtype, block, to + done * size_of(dtype));
  }
}

size_t BenchData::count_wrong(std::span<const int> ranks, size_t begin, size_t count, const std::byte* got) const {
  Numbers sums;
  std::array<std::byte, kBlock * sizeof(uint64_t)> expected;
  const size_t size = size_of(dtype);
  size_t wrong = 0;
  for (size_t done = 0; done < count; done += kBlock) {
    const std::span block(sums.data(), std::min(kBlock, count - done));
    std::ranges::fill(block, 0);
    for (const int rank : ranks) add_numbers(*this, rank, begin + done, block);
    encode(dtype, block, expected.data());
    const std::byte* const own = got + done * size;
    if (std::memcmp(own, expected.data(), block.size() * size) == 0) continue;
    for (size_t i = 0; i < block.size(); ++i)
      wrong += std::memcmp(own + i * size, expected.data() + i * size, size) != 0;
  }
  return wrong;
}

}  // namespace trunkline
