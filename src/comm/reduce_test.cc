// Reduction kernels: every target that this machine has against the plain loops.
#include "comm/reduce.h"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/random.h"

namespace trunkline {
namespace {

using Buffer = std::vector<std::byte>;

class Targets : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

Buffer random_bits(uint64_t seed, size_t bytes) {
  Random random(seed);
  Buffer result(bytes);
  for (std::byte& each : result) each = static_cast<std::byte>(random.next());
  return result;
}

bool is_nan(Dtype dtype, const std::byte* at) {
  if (dtype == Dtype::f32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return std::isnan(value);
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  if (dtype == Dtype::f16) return (bits & 0x7fff) > 0x7c00;
  return dtype == Dtype::bf16 && (bits & 0x7fff) > 0x7f80;
}

// The same bits; where a sum is NaN, any NaN (which of several is passed on is the processor's choice).
void expect_same(Reduction reduction, Dtype dtype, const Buffer& fast, const Buffer& plain) {
  const size_t size = size_of(dtype);
  for (size_t i = 0; i < plain.size(); i += size) {
    if (std::memcmp(&fast[i], &plain[i], size) == 0) continue;
    ASSERT_TRUE(reduction == Reduction::sum && is_nan(dtype, &fast[i]) && is_nan(dtype, &plain[i]))
        << name_of(dtype) << " reduction " << static_cast<int>(reduction) << " element " << i / size;
  }
}

TEST_P(Targets, AnyBitsOfAnyDtypeAtAnyAddress) {
  for (const Dtype dtype : kAllDtypes) {
    for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
      for (const size_t ranks : {1, 2, 3, 5}) {
        for (const size_t count : {0, 1, 2, 7, 31, 64, 65, 1003}) {
          const size_t bytes = count * size_of(dtype);
          std::vector<Buffer> inputs;
          std::vector<const std::byte*> pointers;
          for (size_t rank = 0; rank < ranks; ++rank) {
            inputs.push_back(random_bits(rank * 7919 + count, bytes + rank));
            pointers.push_back(inputs.back().data() + rank);
          }
          Buffer plain(bytes), fast(bytes + 3);
          reduce_plain(reduction, dtype, pointers, plain.data(), count);
          reduce(reduction, dtype, pointers, fast.data() + 3, count);
          fast.erase(fast.begin(), fast.begin() + 3);
          expect_same(reduction, dtype, fast, plain);
          // In place.
          reduce(reduction, dtype, pointers, inputs[0].data(), count);
          expect_same(reduction, dtype, inputs[0], plain);
        }
      }
    }
  }
}

// Every 16-bit float plus every one of some: conversions, roundings, subnormals, overflows.
TEST_P(Targets, SixteenBitSums) {
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    for (const uint16_t other :
         {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0x3f80, 0x7bff, 0x7f7f, 0xfbff, 0x7c00, 0x3555}) {
      std::vector<uint16_t> all(1 << 16), others(1 << 16, other), fast(1 << 16), plain(1 << 16);
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
      const std::byte* const pointers[] = {reinterpret_cast<const std::byte*>(all.data()),
                                           reinterpret_cast<const std::byte*>(others.data())};
      reduce_plain(Reduction::sum, dtype, pointers, reinterpret_cast<std::byte*>(plain.data()), all.size());
      reduce(Reduction::sum, dtype, pointers, reinterpret_cast<std::byte*>(fast.data()), all.size());
      for (size_t i = 0; i < all.size(); ++i) {
        if (fast[i] == plain[i]) continue;
        ASSERT_TRUE(is_nan(dtype, reinterpret_cast<std::byte*>(&fast[i])) &&
                    is_nan(dtype, reinterpret_cast<std::byte*>(&plain[i])))
            << name_of(dtype) << " " << i << " + " << other << ": " << fast[i] << ", not " << plain[i];
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Targets, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

template <typename T>
T reduced(Reduction reduction, Dtype dtype, std::vector<T> values) {
  std::vector<const std::byte*> pointers;
  for (const T& each : values) pointers.push_back(reinterpret_cast<const std::byte*>(&each));
  T result;
  reduce(reduction, dtype, pointers, reinterpret_cast<std::byte*>(&result), 1);
  return result;
}

TEST(Reduce, SixteenBitFloatsAreRoundedOnce) {
  // 256 + 1 + 1 in bfloat16: each step alone would round back to 256.
  EXPECT_EQ(reduced<uint16_t>(Reduction::sum, Dtype::bf16, {0x4380, 0x3f80, 0x3f80}), 0x4381);
  // 2048 + 1 + 1 in float16.
  EXPECT_EQ(reduced<uint16_t>(Reduction::sum, Dtype::f16, {0x6800, 0x3c00, 0x3c00}), 0x6801);
  // The smallest subnormal twice.
  EXPECT_EQ(reduced<uint16_t>(Reduction::sum, Dtype::f16, {0x0001, 0x0001}), 0x0002);
  // Beyond the largest: infinity.
  EXPECT_EQ(reduced<uint16_t>(Reduction::sum, Dtype::f16, {0x7bff, 0x7bff}), 0x7c00);
}

TEST(Reduce, FloatsInRankOrder) {
  EXPECT_EQ(reduced<float>(Reduction::sum, Dtype::f32, {1e8f, -1e8f, 1.0f}), 1.0f);
  EXPECT_EQ(reduced<float>(Reduction::sum, Dtype::f32, {1.0f, 1e8f, -1e8f}), 0.0f);
}

TEST(Reduce, ANanWins) {
  const float nan = std::nanf("");
  for (const Reduction reduction : {Reduction::max, Reduction::min}) {
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, Dtype::f32, {1.0f, nan})));
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, Dtype::f32, {nan, 1.0f})));
    EXPECT_TRUE(std::isnan(reduced<float>(reduction, Dtype::f32, {1.0f, nan, -INFINITY, INFINITY})));
  }
}

TEST(Reduce, IntegersWrapAround) {
  EXPECT_EQ(reduced<int8_t>(Reduction::sum, Dtype::i8, {127, 1}), -128);
  EXPECT_EQ(reduced<uint64_t>(Reduction::sum, Dtype::u64, {~uint64_t{0}, 2}), 1u);
  EXPECT_EQ(reduced<int64_t>(Reduction::max, Dtype::i64, {-1, -2}), -1);
  EXPECT_EQ(reduced<uint64_t>(Reduction::max, Dtype::u64, {1, ~uint64_t{0}}), ~uint64_t{0});
}

}  // namespace
}  // namespace trunkline
