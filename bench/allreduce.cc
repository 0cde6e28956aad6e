// How fast an all-reduce is: ranks on this machine over loopback (-r N), or one rank of a job of `trunkline launch`.
//
//   allreduce [-r RANKS] [-n ITERATIONS] [-l LANES] [-a auto|mesh|broadcast] [-d DTYPE] [SIZE...]
//
// Columns as in nccl-tests; GB/s are 10^9 bytes; cpu: processor time of rank 0 an operation. Each result is checked.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/fail.h"
#include "link/socket.h"
#include "trunkline/group.h"

namespace trunkline {
namespace {

struct Options {
  int ranks = 2;
  int iterations = 0;  // 0: as many as take about a second
  int lanes = 0;
  Algorithm algorithm = Algorithm::automatic;
  std::string dtype = "float32";
  std::vector<std::string> sizes{"4K", "64K", "1M", "16M", "64M"};
};

size_t bytes_from(const std::string& text) {
  size_t end = 0;
  const size_t number = std::stoul(text, &end);
  const std::string unit = text.substr(end);
  if (unit.empty()) return number;
  if (unit == "K") return number << 10;
  if (unit == "M") return number << 20;
  if (unit == "G") return number << 30;
  fail(ErrorKind::input, "\"{}\" is not a size", text);
}

using Microseconds = std::chrono::duration<double, std::micro>;

double cpu_us() {
  rusage usage;
  ::getrusage(RUSAGE_SELF, &usage);
  const auto us = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return us(usage.ru_utime) + us(usage.ru_stime);
}

// A small whole number as an element.
void put(std::byte* to, Dtype dtype, int value) {
  const auto number = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(number);
  switch (dtype) {
    case Dtype::f32: std::memcpy(to, &number, 4); return;
    case Dtype::bf16: bits >>= 16; break;
    case Dtype::f16: bits = value == 0 ? 0 : (bits - (112u << 23)) >> 13; break;
    default: bits = static_cast<uint32_t>(value);
  }
  std::memset(to, 0, size_of(dtype));
  std::memcpy(to, &bits, std::min<size_t>(size_of(dtype), 4));
}

void measure(Group& group, const Options& options, size_t bytes) {
  const Dtype dtype = *dtype_from_name(options.dtype);
  const size_t count = bytes / size_of(dtype);
  std::vector<std::byte> in(bytes), out(bytes);
  // Sums of small whole numbers are exact in every dtype.
  for (size_t i = 0; i < count; ++i)
    put(in.data() + i * size_of(dtype), dtype, static_cast<int>(i % 13) + group.rank());
  const auto timed = [&] {
    group.barrier();
    const auto start = std::chrono::steady_clock::now();
    group.all_sum(in.data(), out.data(), count, dtype);
    return Microseconds(std::chrono::steady_clock::now() - start).count();
  };
  double warm = 0;
  for (int i = 0; i < 5; ++i) warm = timed();
  // Rank 0's count is everybody's.
  auto iterations =
      static_cast<int64_t>(options.iterations > 0 ? options.iterations : std::clamp(1e6 / warm, 10.0, 5000.0));
  group.broadcast(&iterations, 1, Dtype::i64, 0);

  std::vector<double> times;
  for (int64_t i = 0; i < iterations; ++i) times.push_back(timed());
  // Back to back, as nccl-tests measures.
  group.barrier();
  const double cpu_before = cpu_us();
  const auto start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < iterations; ++i) group.all_sum(in.data(), out.data(), count, dtype);
  const double mean = Microseconds(std::chrono::steady_clock::now() - start).count() / static_cast<double>(iterations);
  const double cpu = (cpu_us() - cpu_before) / static_cast<double>(iterations);

  std::vector<std::byte> expected(size_of(dtype));
  for (size_t i = 0; i < count; ++i) {
    const int sum = group.size() * static_cast<int>(i % 13) + group.size() * (group.size() - 1) / 2;
    put(expected.data(), dtype, sum);
    if (std::memcmp(out.data() + i * size_of(dtype), expected.data(), expected.size()) != 0) {
      fail(ErrorKind::numeric, "rank {}: element {} of {} is wrong", group.rank(), i, count);
    }
  }
  if (group.rank() != 0) return;
  std::sort(times.begin(), times.end());
  const double algorithm_rate = static_cast<double>(bytes) / mean / 1e3;
  const double bus_rate = algorithm_rate * 2 * (group.size() - 1) / group.size();
  std::printf("%12zu %12zu %9s %10.1f %10.1f %10.1f %10.1f %8.2f %8.2f\n", bytes, count, options.dtype.c_str(), mean,
              times[times.size() / 2], times[times.size() * 99 / 100], cpu, algorithm_rate, bus_rate);
  std::fflush(stdout);
}

void run_rank(const Options& options, Config config) {
  config.lanes = options.lanes;
  config.algorithm = options.algorithm;
  const auto group = Group::connect(config);
  if (group->rank() == 0) {
    std::printf("# all_sum, %d ranks\n%12s %12s %9s %10s %10s %10s %8s %8s\n", group->size(), "size(B)", "count",
                "type", "time(us)", "p50(us)", "p99(us)", "algbw", "busbw");
  }
  for (const std::string& size : options.sizes) measure(*group, options, bytes_from(size));
}

int run_here(const Options& options) {
  const Fd listener = listen_on(Address::resolve("127.0.0.1:0").front());
  std::vector<pid_t> children;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const pid_t pid = ::fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    try {
      Config config;
      config.rank = rank;
      config.size = options.ranks;
      config.coordinator = Address::local_of(listener.get()).text();
      if (rank == 0) config.listen_fd = ::dup(listener.get());
      run_rank(options, config);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      ::_exit(1);
    }
  }
  int failed = 0;
  for (const pid_t pid : children) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    failed |= status;
  }
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace trunkline

int main(int argc, char** argv) {
  using namespace trunkline;
  Options options;
  CLI::App app{"All-reduce over TCP"};
  app.add_option("-r,--ranks", options.ranks, "Ranks on this machine (default 2); not under a launcher");
  app.add_option("-n,--iterations", options.iterations);
  app.add_option("-l,--lanes", options.lanes);
  app.add_option("-a,--algorithm", options.algorithm)
      ->transform(CLI::CheckedTransformer(std::map<std::string, Algorithm>{
          {"auto", Algorithm::automatic}, {"mesh", Algorithm::mesh}, {"broadcast", Algorithm::broadcast}}));
  app.add_option("-d,--dtype", options.dtype)->check([](const std::string& name) {
    return dtype_from_name(name) ? "" : "no such dtype";
  });
  app.add_option("sizes", options.sizes, "Bytes: 4096, 4K, 1M, ...");
  CLI11_PARSE(app, argc, argv);
  try {
    Config config = Config::from_env();
    if (config.size == 1) return run_here(options);
    run_rank(options, config);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
