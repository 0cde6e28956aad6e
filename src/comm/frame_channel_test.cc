#include "comm/frame_channel.h"

#include <gmock/gmock.h>
#include <spdlog/spdlog.h>

#include <numeric>

#include "comm/algorithms.h"
#include "comm/memory_cable_test.h"
#include "comm/ranks_test.h"
#include "link/rendezvous.h"

namespace trunkline {
namespace {

using testing::Job;
using testing::MemoryCable;
using testing::Thrown;

// Made before there are threads: a thread sanitizer does not see into spdlog's library.
const std::shared_ptr<spdlog::logger> kLogger = spdlog::default_logger();

// Ranks that are threads, each with one channel over cables in memory.
class Cables {
 public:
  Cables(size_t ranks, size_t cables, const MemoryCable::Faults& faults, size_t frame_bytes)
      : ranks_(ranks), frame_bytes_(frame_bytes), job_(static_cast<int>(ranks)) {
    for (size_t a = 0; a < ranks; ++a) {
      for (size_t b = a + 1; b < ranks; ++b) {
        for (size_t i = 0; i < cables; ++i) {
          MemoryCable::Faults own = faults;
          own.seed = faults.seed * 1000 + a * 100 + b * 10 + i;
          between_[{a, b}].push_back(std::make_shared<MemoryCable>(fmt::format("cable{}", i), own));
        }
      }
    }
  }

  std::vector<std::shared_ptr<MemoryCable>>& between(size_t a, size_t b) { return between_.at({a, b}); }

  std::vector<Thrown> run(const std::function<void(Channel&, const Team&)>& body) {
    std::vector<Thrown> thrown(ranks_);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          run_rank(rank, body);
        } catch (const Error& error) {
          thrown[rank] = {error.kind(), error.what()};
        }
      });
    }
    for (std::thread& each : threads) each.join();
    return thrown;
  }

 private:
  static constexpr size_t kReceives = 24;

  void run_rank(size_t rank, const std::function<void(Channel&, const Team&)>& body) {
    const Config config = job_.config(static_cast<int>(rank));
    Place place;
    place.rank = config.rank;
    place.size = config.size;
    place.coordinator = config.coordinator;
    place.listen_fd = config.listen_fd;
    place.job_key = config.job_key;
    place.lanes = 1;
    Connections connections = rendezvous(place);
    Watch watch(rank, std::move(connections.members), std::move(connections.control), std::chrono::seconds(20));

    std::vector<size_t> links;
    for (size_t peer = 0; peer < ranks_; ++peer) {
      links.push_back(peer == rank ? 0 : between(std::min(rank, peer), std::max(rank, peer)).size());
    }
    FrameChannel::Options options;
    options.frame_bytes = frame_bytes_;
    const FrameChannel::Layout layout = FrameChannel::layout(frame_bytes_, links);
    LaneTrunks lane;
    const size_t all = std::accumulate(links.begin(), links.end(), size_t{0});
    lane.slab = Slab(layout.bytes() + all * kReceives * layout.slot_bytes);
    std::byte* receives = lane.slab.data() + layout.bytes();
    lane.trunks.resize(ranks_);
    for (size_t peer = 0; peer < ranks_; ++peer) {
      for (size_t i = 0; i < links[peer]; ++i) {
        const auto& cable = between(std::min(rank, peer), std::max(rank, peer))[i];
        TrunkLink link;
        link.link = std::make_unique<MemoryCable::End>(cable, 0, rank < peer ? 0 : 1);
        link.receive_slots = receives;
        link.receives = link.peer_receives = link.sends = kReceives;
        receives += kReceives * layout.slot_bytes;
        for (size_t slot = 0; slot < kReceives; ++slot) {
          link.link->post_receive(link.receive_slots + slot * layout.slot_bytes,
                                  static_cast<uint32_t>(layout.slot_bytes), slot);
        }
        lane.trunks[peer].push_back(std::move(link));
      }
    }
    FrameChannel channel(rank, std::move(lane), layout, watch, std::make_shared<Keeper>(), std::make_shared<CableLog>(),
                         options);
    Team team{{}, rank};
    for (size_t each = 0; each < ranks_; ++each) team.ranks.push_back(each);
    try {
      body(channel, team);
    } catch (const Error& error) {
      watch.fail_job(error);
      throw;
    }
    channel.drain(Deadline::after(std::chrono::seconds(5)));
    watch.leave();
  }

  const size_t ranks_, frame_bytes_;
  const Job job_;
  std::map<std::pair<size_t, size_t>, std::vector<std::shared_ptr<MemoryCable>>> between_;
};

float value(size_t rank, size_t i, uint64_t number) { return static_cast<float>((rank + 1) * 100 + i % 97 + number); }

// Sums of several sizes, one after the other.
void sums(Channel& channel, const Team& team, Algorithm algorithm, const std::vector<size_t>& counts) {
  uint64_t number = 0;
  for (const size_t count : counts) {
    Operation operation;
    operation.number = ++number;
    operation.kind = Operation::Kind::all_reduce;
    operation.count = count;
    operation.dtype = Dtype::f32;
    operation.algorithm = algorithm;
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = value(team.place, i, number);
    const Bytes bytes = std::as_writable_bytes(std::span(data));
    if (algorithm == Algorithm::broadcast) {
      broadcast_all_reduce(channel, operation, team, bytes, bytes);
    } else {
      Blocks blocks;
      ConstBlocks in;
      const size_t ranks = team.ranks.size(), each = count / ranks * sizeof(float);
      for (size_t r = 0; r < ranks; ++r) {
        blocks.push_back(bytes.subspan(r * each, r + 1 == ranks ? bytes.size() - r * each : each));
        in.push_back(blocks.back());
      }
      mesh_all_reduce(channel, operation, team, in, blocks);
    }
    for (size_t i = 0; i < count; ++i) {
      float expected = 0;
      for (size_t r = 0; r < team.ranks.size(); ++r) expected += value(r, i, number);
      if (data[i] != expected) {
        fail(ErrorKind::numeric, "operation {}: element {} is {}, not {}", number, i, data[i], expected);
      }
    }
  }
}

const std::vector<size_t> kCounts = {1, 7, 1024, 100'003, 0, 65'536, 3, 500'000};

class FrameChannelTest : public ::testing::TestWithParam<std::tuple<size_t, size_t, Algorithm>> {};

TEST_P(FrameChannelTest, SumsAreRightOverPerfectCables) {
  const auto& [ranks, cables, algorithm] = GetParam();
  Cables job(ranks, cables, {}, 4096);
  for (const Thrown& each :
       job.run([&](Channel&channel, const Team&team) { sums(channel, team, algorithm, kCounts); })) {
    EXPECT_EQ(each.text, "");
  }
}

TEST_P(FrameChannelTest, SumsAreRightOverCablesThatLoseAndDamage) {
  const auto& [ranks, cables, algorithm] = GetParam();
  MemoryCable::Faults faults;
  faults.loss = 0.01;
  faults.damage = 0.01;
  faults.seed = 5;
  Cables job(ranks, cables, faults, 4096);
  for (const Thrown& each : job.run([&](Channel&channel, const Team&team) {
         sums(channel, team, algorithm, {1, 100'003, 0, 65'536, 3});
       })) {
    EXPECT_EQ(each.text, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, FrameChannelTest,
                         ::testing::Combine(::testing::Values(2, 3, 4), ::testing::Values(1, 3),
                                            ::testing::Values(Algorithm::mesh, Algorithm::broadcast)));

}  // namespace
}  // namespace trunkline
