// Every call of a group over cables, good ones and ones that lose and damage.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "comm/fabric_ranks_test.h"
#include "comm/values_test.h"

namespace trunkline::testing {
namespace {

void require_same(const Buffer& got, const Buffer& expected, const char* what, size_t count) {
  if (got != expected) throw std::runtime_error(fmt::format("{} of {}: other bytes", what, count));
}

const size_t kCounts[] = {0, 1, 1025, 70'001};

void gather_scatter_and_broadcast(Group& group, Algorithm algorithm) {
  const auto size = static_cast<size_t>(group.size()), rank = static_cast<size_t>(group.rank());
  for (const size_t count : kCounts) {
    const Case& values = case_of(group.size(), count, Dtype::bf16);
    Buffer all;
    for (const Buffer& each : values.inputs) all.insert(all.end(), each.begin(), each.end());
    const Buffer& own = values.inputs[rank];
    Buffer gathered(all.size()), in_place(all.size());
    group.all_gather(own.data(), gathered.data(), count, Dtype::bf16);
    require_same(gathered, all, "all_gather", count);
    std::copy(own.begin(), own.end(), in_place.begin() + static_cast<ptrdiff_t>(own.size() * rank));
    group.all_gather(in_place.data() + own.size() * rank, in_place.data(), count, Dtype::bf16);
    require_same(in_place, all, "all_gather in place", count);

    const Case& blocks = case_of(group.size(), count * size, Dtype::bf16);
    const size_t block = count * size_of(Dtype::bf16);
    const Buffer& sums = blocks.scattered(algorithm);
    const auto begin = sums.begin() + static_cast<ptrdiff_t>(block * rank);
    Buffer part(block);
    group.sum_scatter(blocks.inputs[rank].data(), part.data(), count, Dtype::bf16);
    require_same(part, Buffer(begin, begin + static_cast<ptrdiff_t>(block)), "sum_scatter", count);

    for (size_t root = 0; root < size; ++root) {
      Buffer data = own;
      group.broadcast(data.data(), count, Dtype::bf16, static_cast<int>(root));
      require_same(data, values.inputs[root], "broadcast", count);
    }
  }
}

void send_and_receive(Group& group) {
  for (const size_t count : kCounts) {
    for (int from = 0; from < group.size(); ++from) {
      for (int to = 0; to < group.size(); ++to) {
        if (from == to) continue;
        const Buffer expected = input_of(from, count, Dtype::f32);
        if (group.rank() == from) group.send(expected.data(), count, Dtype::f32, to);
        if (group.rank() != to) continue;
        Buffer data(expected.size());
        group.recv(data.data(), count, Dtype::f32, from);
        require_same(data, expected, "recv", count);
      }
    }
  }
}

// Calls of several groups, under way at once.
void split_and_go_on(Group& group) {
  const auto pair = group.split(group.rank() / 2, -group.rank());
  std::vector<float> data(50'000, 1.0f), small(2'000, 1.0f);
  std::vector<Work> works;
  for (int round = 0; round < 5; ++round) {
    works.push_back(group.all_sum_async(data.data(), data.data(), data.size(), Dtype::f32));
    works.push_back(pair->all_sum_async(small.data(), small.data(), small.size(), Dtype::f32));
    if (round == 2) pair->barrier();
  }
  for (Work& each : works) each.wait();
  const float size = static_cast<float>(group.size()), pair_size = static_cast<float>(pair->size());
  if (data.back() != std::pow(size, 5.0f) || small.back() != std::pow(pair_size, 5.0f)) {
    throw std::runtime_error("wrong sums in groups");
  }
  group.barrier();
}

class OnCables : public ::testing::TestWithParam<std::tuple<const char*, int, Algorithm>> {};

TEST_P(OnCables, EveryCall) {
  if (!kHasFabric) GTEST_SKIP() << "no emulated cables here";
  const auto [cables, size, algorithm] = GetParam();
  const Job job(size);
  const TestFabric fabric(cables, size);
  auto ranks = start_processes(
      job,
      [&, wanted = algorithm](Group& group, const auto&) {
        gather_scatter_and_broadcast(group, wanted);
        send_and_receive(group);
        split_and_go_on(group);
      },
      fabric.tweak([wanted = algorithm](Config& config) {
        config.lanes = 2;
        config.algorithm = wanted;
        config.frame_bytes = 8192;
      }));
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

INSTANTIATE_TEST_SUITE_P(, OnCables,
                         ::testing::Combine(::testing::Values("2", "3:loss=0.01,damage=0.01,seed=8"),
                                            ::testing::Values(2, 4),
                                            ::testing::Values(Algorithm::automatic, Algorithm::ring)),
                         [](const auto& test) {
                           return fmt::format("{}Ranks{}{}", std::get<1>(test.param), text_of(std::get<2>(test.param)),
                                              std::string_view(std::get<0>(test.param)).size() > 1 ? "Faulty" : "Good");
                         });

}  // namespace
}  // namespace trunkline::testing
