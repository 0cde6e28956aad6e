#include "cli/bench_data.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <vector>

#include "comm/reduce.h"

namespace trunkline {
namespace {

class BenchDataTest : public ::testing::TestWithParam<Dtype> {
 protected:
  static constexpr size_t kCount = 3001;

  const BenchData data_{GetParam(), 7};
  const size_t size_ = size_of(GetParam());

  std::vector<std::byte> filled(int rank, size_t begin = 0, size_t count = kCount) const {
    std::vector<std::byte> bytes(count * size_);
    data_.fill(rank, begin, count, bytes.data());
    return bytes;
  }
};

TEST_P(BenchDataTest, WhatThePlainReductionGivesIsRight) {
  const std::vector<int> ranks = {0, 1, 2, 3, 4};
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> pointers;
  for (const int rank : ranks) pointers.push_back(inputs.emplace_back(filled(rank)).data());
  std::vector<std::byte> sum(kCount * size_);
  reduce_plain(Reduction::sum, GetParam(), pointers, sum.data(), kCount);
  EXPECT_EQ(data_.count_wrong(ranks, 0, kCount, sum.data()), 0u);
}

TEST_P(BenchDataTest, EveryWrongElementIsCounted) {
  const int ranks[] = {2};
  std::vector<std::byte> bytes = filled(2);
  EXPECT_EQ(data_.count_wrong(ranks, 0, kCount, bytes.data()), 0u);
  for (const size_t element : {size_t{0}, size_t{1023}, size_t{1024}, kCount - 1}) {
    bytes[element * size_ + size_ - 1] ^= std::byte{1};
  }
  EXPECT_EQ(data_.count_wrong(ranks, 0, kCount, bytes.data()), 4u);
  EXPECT_EQ(data_.count_wrong(ranks, 1, kCount - 2, bytes.data() + size_), 2u);
}

TEST_P(BenchDataTest, OtherRanksSeedsAndPlacesHaveOtherData) {
  const std::vector<std::byte> bytes = filled(2);
  const auto wrong = [&](const BenchData& data, int rank, size_t begin) {
    const int ranks[] = {rank};
    return data.count_wrong(ranks, begin, kCount, bytes.data());
  };
  EXPECT_GT(wrong(data_, 3, 0), kCount * 9 / 10);
  EXPECT_GT(wrong({GetParam(), 8}, 2, 0), kCount * 9 / 10);
  EXPECT_GT(wrong(data_, 2, 1), kCount * 9 / 10);
}

TEST_P(BenchDataTest, PartsFitTogether) {
  std::vector<std::byte> whole = filled(1);
  const std::vector<std::byte> part = filled(1, 1500, 100);
  EXPECT_EQ(std::memcmp(whole.data() + 1500 * size_, part.data(), part.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, BenchDataTest, ::testing::ValuesIn(kAllDtypes),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// By hand: 257 and 259 lie between two bfloat16 each; ties go to the even one.
TEST(BenchData, SixteenBitSumsAreRoundedOnce) {
  const BenchData data{Dtype::bf16, 3};
  std::vector<int> ranks(12);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  size_t rounded = 0;
  for (size_t element = 0; element < 2000; ++element) {
    float sum = 0;
    for (const int rank : ranks) {
      uint16_t bits = 0;
      data.fill(rank, element, 1, reinterpret_cast<std::byte*>(&bits));
      sum += std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
    }
    uint32_t bits = std::bit_cast<uint32_t>(sum);
    const uint32_t cut = bits & 0xffff;
    bits >>= 16;
    if (cut > 0x8000 || (cut == 0x8000 && (bits & 1) != 0)) ++bits;
    rounded += cut != 0;
    const auto expected = static_cast<uint16_t>(bits);
    EXPECT_EQ(data.count_wrong(ranks, element, 1, reinterpret_cast<const std::byte*>(&expected)), 0u) << sum;
  }
  EXPECT_GT(rounded, 100u);
}

}  // namespace
}  // namespace trunkline
