// What the emulated fabric itself can do, with no protocol above it: a stream of messages from one process to another,
// which copies nothing of its own, and a ping-pong. One core each; cables without limit unless a SPEC says otherwise.
//
// usage: fabric_stream [SPEC]
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "cluster/cables.h"
#include "fabric/job_test.h"

namespace trunkline::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

ibv_wc spin(Endpoint& pair) {
  ibv_wc completion;
  while (ibv_poll_cq(pair.cq, 1, &completion) == 0) {
  }
  REQUIRE(completion.status == IBV_WC_SUCCESS);
  return completion;
}

// glibc's memcpy between two buffers that no cache holds: the unit that other figures are given in.
double memcpy_gbps() {
  constexpr size_t kBytes = 64 << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  std::array<double, 7> seconds;
  for (double& one : seconds) {
    const auto start = Clock::now();
    std::memcpy(to.data(), from.data(), kBytes);
    one = seconds_since(start);
    from[1] = to[5];
  }
  std::nth_element(seconds.begin(), seconds.begin() + 3, seconds.end());
  return 8e-9 * kBytes / seconds[3];
}

// Rank 0 sends; rank 1 posts each receive again and confirms every eighth with an empty message. So no more are on
// their way than receives are posted.
void stream(Job& job, int rank, size_t bytes, uint64_t depth, uint64_t messages) {
  constexpr uint64_t kConfirm = 8, kConfirmations = 16;
  OpenDevice device("rdma_en2");
  Endpoint pair(device, bytes, depth + kConfirmations);
  pair.connect(job, rank, 1 - rank, 0);
  const uint64_t receives = rank == 0 ? kConfirmations : depth + kConfirm;
  for (uint64_t i = 0; i < receives; ++i) REQUIRE(pair.receive(i % depth, i % depth) == 0);
  job.barrier();
  const auto start = Clock::now();
  if (rank == 0) {
    for (uint64_t sent = 0, taken = 0, confirmed = 0; confirmed + kConfirm <= messages || taken < messages;) {
      while (sent < messages && sent - taken < depth && sent - confirmed < depth) {
        REQUIRE(pair.send(sent % depth, bytes, sent) == 0);
        ++sent;
      }
      const ibv_wc completion = spin(pair);
      if (completion.opcode == IBV_WC_SEND) {
        ++taken;
      } else {
        confirmed += kConfirm;
        REQUIRE(pair.receive(0, 0) == 0);
      }
    }
    const double seconds = seconds_since(start);
    fmt::print("stream, {} KiB messages, depth {}: {:.2f} Gbps\n", bytes >> 10, depth,
               8e-9 * static_cast<double>(bytes * messages) / seconds);
    std::fflush(stdout);
  } else {
    for (uint64_t received = 0; received < messages;) {
      const ibv_wc completion = spin(pair);
      if (completion.opcode == IBV_WC_SEND) continue;
      REQUIRE(pair.receive(completion.wr_id, completion.wr_id) == 0);
      if (++received % kConfirm == 0) REQUIRE(pair.send(0, 0, 0) == 0);
    }
  }
  job.barrier();
}

void ping_pong(Job& job, int rank, size_t bytes, size_t rounds) {
  OpenDevice device("rdma_en2");
  Endpoint pair(device, std::max<size_t>(bytes, 64), 2);
  pair.connect(job, rank, 1 - rank, 1);
  REQUIRE(pair.receive(0, 0) == 0);
  job.barrier();
  std::vector<double> half_us;
  for (size_t round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    if (rank == 0) REQUIRE(pair.send(1, bytes, 1, 0) == 0);
    while (spin(pair).opcode != IBV_WC_RECV) {
    }
    REQUIRE(pair.receive(0, 0) == 0);
    if (rank == 1) REQUIRE(pair.send(1, bytes, 1, 0) == 0);
    half_us.push_back(seconds_since(start) / 2 * 1e6);
  }
  std::sort(half_us.begin(), half_us.end());
  if (rank == 0) {
    fmt::print("ping-pong, {} bytes: half a round trip p50 {:.2f} us, p99 {:.2f} us\n", bytes, half_us[rounds / 2],
               half_us[rounds * 99 / 100]);
    std::fflush(stdout);
  }
  job.barrier();
}

int run(const std::string& spec) {
  const std::string wiring = to_json(wiring_from_spec(spec, 2));
  fmt::print("emulated fabric, cables {}\nmemcpy of 64 MiB: {:.1f} Gbps\n", spec, memcpy_gbps());
  std::fflush(stdout);
  int code = 0;
  for (const size_t bytes : {4 << 10, 64 << 10, 1 << 20}) {
    Job job(2, wiring);
    code |= job.run(
        [&](int rank) { stream(job, rank, bytes, 32, (size_t{4} << 30) / bytes / 8 * 8 / (bytes < 65536 ? 4 : 1)); });
  }
  for (const size_t bytes : {64, 4096}) {
    Job job(2, wiring);
    code |= job.run([&](int rank) { ping_pong(job, rank, bytes, 20'000); });
  }
  return code;
}

}  // namespace
}  // namespace trunkline::test

int main(int argc, char** argv) {
  try {
    return trunkline::test::run(argc > 1 ? argv[1] : "1");
  } catch (const std::exception& error) {
    fmt::print(stderr, "fabric_stream: {}\n", error.what());
    return 1;
  }
}
