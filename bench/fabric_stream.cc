// What the emulated fabric itself can do, with no protocol above it: a stream of messages from one process to another,
// which copies nothing of its own, and a ping-pong. One core each; cables without limit unless a SPEC says otherwise.
// --json: {"memcpy_gbps", "stream": [{"bytes", "depth", "gbps"}], "ping_pong": [{"bytes", "p50_us", "p99_us"}]}.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

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
    job.board->numbers[0] = static_cast<uint64_t>(seconds_since(start) * 1e9);
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
    job.board->numbers[0] = static_cast<uint64_t>(half_us[rounds / 2] * 1e3);
    job.board->numbers[1] = static_cast<uint64_t>(half_us[rounds * 99 / 100] * 1e3);
  }
  job.barrier();
}

struct Options {
  std::string spec = "1";
  std::vector<size_t> stream_bytes{4 << 10, 64 << 10, 1 << 20};
  std::vector<size_t> ping_bytes{64, 4096};
  uint64_t depth = 32;
  uint64_t total_mib = 4096;
  size_t rounds = 20'000;
  bool json = false;
};

int run(const Options& options) {
  const std::string wiring = to_json(wiring_from_spec(options.spec, 2));
  nlohmann::ordered_json result = {{"cables", options.spec}, {"memcpy_gbps", memcpy_gbps()}};
  const auto say = [&](const std::string& line) {
    if (options.json) return;
    fmt::print("{}\n", line);
    std::fflush(stdout);
  };
  say(fmt::format("emulated fabric, cables {}\nmemcpy of 64 MiB: {:.1f} Gbps", options.spec,
                  result["memcpy_gbps"].get<double>()));
  const auto nanoseconds = [](const Job& job, int which) { return static_cast<double>(job.board->numbers[which]); };
  for (const size_t bytes : options.stream_bytes) {
    // A multiple of 8, which is how many a confirmation stands for; small ones take longer a byte.
    const uint64_t messages =
        std::max<uint64_t>((options.total_mib << 20) / bytes / (bytes < 65536 ? 4 : 1), options.depth * 2) / 8 * 8;
    Job job(2, wiring);
    if (const int code = job.run([&](int rank) { stream(job, rank, bytes, options.depth, messages); })) return code;
    const double gbps = 8 * static_cast<double>(bytes * messages) / nanoseconds(job, 0);
    result["stream"].push_back({{"bytes", bytes}, {"depth", options.depth}, {"gbps", gbps}});
    say(fmt::format("stream, {} byte messages, depth {}: {:.2f} Gbps", bytes, options.depth, gbps));
  }
  for (const size_t bytes : options.ping_bytes) {
    Job job(2, wiring);
    if (const int code = job.run([&](int rank) { ping_pong(job, rank, bytes, options.rounds); })) return code;
    const double p50 = nanoseconds(job, 0) / 1e3, p99 = nanoseconds(job, 1) / 1e3;
    result["ping_pong"].push_back({{"bytes", bytes}, {"p50_us", p50}, {"p99_us", p99}});
    say(fmt::format("ping-pong, {} bytes: half a round trip p50 {:.2f} us, p99 {:.2f} us", bytes, p50, p99));
  }
  if (options.json) fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace
}  // namespace trunkline::test

int main(int argc, char** argv) {
  trunkline::test::Options options;
  CLI::App app("The emulated fabric with no protocol above it");
  app.add_option("SPEC", options.spec, "The cable, as for trunkline launch --cables");
  app.add_option("--stream", options.stream_bytes, "Sizes of a stream's messages")->check(CLI::Range(1, 16 << 20));
  app.add_option("--ping", options.ping_bytes, "Sizes of a ping-pong's messages")->check(CLI::Range(0, 16 << 20));
  app.add_option("--depth", options.depth, "Messages on their way (at most 54: a queue takes 63)")
      ->check(CLI::Range(8, 54));
  app.add_option("--mib", options.total_mib, "What a stream moves in all; a quarter with messages below 64 KiB")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds, "Of a ping-pong")->check(CLI::Range(1, 100'000'000));
  app.add_flag("--json", options.json, "One line of JSON instead of text");
  CLI11_PARSE(app, argc, argv);
  try {
    return trunkline::test::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fabric_stream: {}\n", error.what());
    return 1;
  }
}
