#include "cli/bench_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <new>
#include <numeric>

#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"

namespace trunkline {
namespace {

constexpr int kCopies = 7;  // of which the median counts

std::unique_ptr<std::byte[]> touched_buffer(size_t bytes) {
  const size_t wanted = std::max<size_t>(bytes, 1);
  std::unique_ptr<std::byte[]> buffer;
  if (bytes <= static_cast<size_t>(machine_memory()) / 2) {
    buffer.reset(new (std::nothrow) std::byte[wanted]());  // zeros: every page is there
  }
  if (buffer == nullptr) {
    fail(ErrorKind::input, "no memory for two buffers of {} bytes: ask for a smaller -e", bytes);
  }
  return buffer;
}

// Processor time of this process, all threads.
double cpu_us() { return static_cast<double>(std::clock()) * 1e6 / CLOCKS_PER_SEC; }

}  // namespace

BenchRun::BenchRun(Group& group, const BenchOptions& options)
    : group_(group),
      options_(options),
      rank_(static_cast<size_t>(group.rank())),
      size_(static_cast<size_t>(group.size())) {
  const std::string_view name = name_of(options.collective);
  if (options.collective == Collective::sendrecv) {
    if (size_ < 2) {
      fail(ErrorKind::input, "{} takes two ranks at least: trunkline launch -n 2 -- trunkline bench {} ...", name,
           name);
    }
    if (options.one_way && size_ != 2) fail(ErrorKind::input, "--one-way is for 2 ranks, and here are {}", size_);
    exchange_ = options.one_way ? Exchange::one_way : size_ == 2 ? Exchange::ping_pong : Exchange::ring;
  }
  if (options.root >= group.size()) {
    fail(ErrorKind::input, "--root {}: the ranks go from 0 to {}", options.root, size_ - 1);
  }
  const size_t most = *std::max_element(options.sizes.begin(), options.sizes.end());
  in_ = touched_buffer(most);
  out_ = touched_buffer(most);
  if (options.profile) group.profile();  // from here on
}

BenchResult BenchRun::measure(size_t bytes) {
  BenchResult result;
  const Message message = message_of(options_.collective, bytes, options_.dtype, group_.size());
  result.message = message;
  ++seed_;
  BenchData{options_.dtype, seed_}.fill(group_.rank(), 0, message.bytes / size_of(options_.dtype), in_.get());

  for (int i = 0; i < options_.warmup; ++i) call(message);
  group_.barrier();  // what is counted is of the calls alone, not of waiting for a rank that comes late
  const std::vector<CableTraffic> before = group_.cables();
  if (options_.profile) group_.profile();
  const double cpu_before = cpu_us();
  const std::vector<double> own = time_calls(message);
  const double cpu = cpu_us() - cpu_before;
  const Profile profile = options_.profile ? group_.profile() : Profile();
  group_.barrier();  // whoever has all that it gets may not have sent all that it gives
  const std::vector<CableTraffic> after = group_.cables();

  result.us = times_of(slowest(own));
  result.algorithm_bytes_s = algorithm_bandwidth(message.bytes, result.us.mean * 1e-6);
  result.bus_bytes_s = result.algorithm_bytes_s * bus_factor(options_.collective, group_.size());
  const double messages = messages_a_call() * options_.iterations;
  result.cpu_us = cpu / messages;
  const auto a_call = [&](uint64_t end, uint64_t begin) {
    const auto calls = static_cast<uint64_t>(options_.iterations);
    return (end - begin + calls - 1) / calls;
  };
  for (size_t i = 0; i < after.size(); ++i) {
    const bool known = i < before.size() && before[i].id == after[i].id && before[i].peer == after[i].peer;
    const CableTraffic start = known ? before[i] : CableTraffic();
    result.cables.push_back({after[i].id, after[i].peer, a_call(after[i].bytes_sent, start.bytes_sent),
                             a_call(after[i].bytes_received, start.bytes_received)});
  }
  if (options_.profile && message.bytes > 0) {
    result.parts = parts_of_all(message, profile, seconds_to_copy(message.bytes));
  }
  if (options_.check) result.wrong = check(message);
  return result;
}

void BenchRun::call(const Message& message) {
  const Dtype dtype = options_.dtype;
  switch (options_.collective) {
    case Collective::sendrecv: return send_and_receive(message);
    case Collective::allreduce:
      return group_.all_sum(in_.get(), options_.in_place ? in_.get() : out_.get(), message.count, dtype);
    case Collective::allgather: return group_.all_gather(in_.get(), out_.get(), message.count, dtype);
    case Collective::reducescatter: return group_.sum_scatter(in_.get(), out_.get(), message.count, dtype);
    case Collective::broadcast: {
      std::byte* const data = group_.rank() == options_.root ? in_.get() : out_.get();
      return group_.broadcast(data, message.count, dtype, options_.root);
    }
  }
}

// A rank that sends waits for its receiver, so neighbours must not both send first.
void BenchRun::send_and_receive(const Message& message) {
  const int rank = group_.rank(), size = group_.size();
  const auto send = [&](int to) { group_.send(in_.get(), message.count, options_.dtype, to); };
  const auto receive = [&](int from) { group_.recv(out_.get(), message.count, options_.dtype, from); };
  if (exchange_ == Exchange::one_way) return rank == 0 ? send(1) : receive(0);
  const int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  if (rank % 2 == 0) {
    send(next);
    receive(previous);
  } else {
    receive(previous);
    send(next);
  }
}

// Microseconds of a message.
std::vector<double> BenchRun::time_calls(const Message& message) {
  std::vector<double> samples(static_cast<size_t>(options_.iterations));
  auto start = Clock::now();
  for (double& sample : samples) {
    call(message);
    const auto end = Clock::now();
    sample = std::chrono::duration<double, std::micro>(end - start).count() / messages_a_call();
    start = end;
  }
  return samples;
}

// The samples of the rank that took longest in all.
std::vector<double> BenchRun::slowest(const std::vector<double>& own) {
  const size_t count = own.size();
  std::vector<uint64_t> mine(count), all(count * size_);
  std::ranges::transform(own, mine.begin(), [](double us) { return static_cast<uint64_t>(std::llround(us * 1e3)); });
  group_.all_gather(mine.data(), all.data(), count, Dtype::u64);
  const auto total = [&](size_t rank) {
    const auto first = all.begin() + static_cast<ptrdiff_t>(rank * count);
    return std::accumulate(first, first + static_cast<ptrdiff_t>(count), uint64_t{0});
  };
  size_t slow = 0;
  for (size_t rank = 1; rank < size_; ++rank) {
    if (total(rank) > total(slow)) slow = rank;
  }
  std::vector<double> samples(count);
  for (size_t i = 0; i < count; ++i) samples[i] = static_cast<double>(all[slow * count + i]) * 1e-3;
  return samples;
}

double BenchRun::seconds_to_copy(size_t bytes) {
  std::vector<double> seconds(kCopies);
  for (double& one : seconds) {
    group_.barrier();
    const auto start = Clock::now();
    std::memcpy(out_.get(), in_.get(), bytes);
    one = seconds_since(start);
    static_cast<volatile std::byte&>(in_[0]) = static_cast<volatile std::byte&>(out_[bytes - 1]);  // done each time
  }
  return times_of(seconds).p50;
}

std::vector<NsPerKib> BenchRun::parts_of_all(const Message& message, const Profile& own, double copy) {
  constexpr size_t kParts = 7;
  const double kib = static_cast<double>(message.bytes) / 1024;
  std::vector<float> mine, all(kParts * size_);
  for (const double part : {own.verbs, own.copy, own.reduce, own.checksum, own.protocol, own.idle}) {
    mine.push_back(static_cast<float>(part * 1e9 / (kib * messages_a_call() * options_.iterations)));
  }
  mine.push_back(static_cast<float>(copy * 1e9 / kib));
  group_.all_gather(mine.data(), all.data(), kParts, Dtype::f32);
  std::vector<NsPerKib> result;
  for (const float* part = all.data(); part != all.data() + all.size(); part += kParts) {
    result.push_back({part[0], part[1], part[2], part[3], part[4], part[5], part[6]});
  }
  return result;
}

// As many calls as were timed, each with other data and a buffer that holds none of what should come; the number of
// wrong elements in all of them on all ranks.
uint64_t BenchRun::check(const Message& message) {
  const size_t elements = message.bytes / size_of(options_.dtype);
  uint64_t wrong = 0;
  for (int i = 0; i < options_.iterations; ++i) {
    const BenchData data{options_.dtype, ++seed_};
    data.fill(group_.rank(), 0, elements, in_.get());
    std::memset(out_.get(), 0x5a, message.bytes);
    call(message);
    wrong += wrong_here(message, data);
  }
  uint64_t total = 0;
  group_.all_sum(&wrong, &total, 1, Dtype::u64);
  return total;
}

size_t BenchRun::wrong_here(const Message& message, const BenchData& data) const {
  const int rank = group_.rank(), size = group_.size();
  const auto from_one = [&](int other, const std::byte* got) {
    return data.count_wrong({&other, 1}, 0, message.count, got);
  };
  std::vector<int> everybody(size_);
  std::iota(everybody.begin(), everybody.end(), 0);
  switch (options_.collective) {
    case Collective::sendrecv:
      if (exchange_ == Exchange::one_way && rank == 0) return 0;
      return from_one((rank + size - 1) % size, out_.get());
    case Collective::allreduce:
      return data.count_wrong(everybody, 0, message.count, options_.in_place ? in_.get() : out_.get());
    case Collective::allgather: {
      size_t wrong = 0;
      for (const int other : everybody) {
        const size_t offset = static_cast<size_t>(other) * message.count * size_of(data.dtype);
        wrong += from_one(other, out_.get() + offset);
      }
      return wrong;
    }
    case Collective::reducescatter: {
      const size_t first = rank_ * message.count;
      return data.count_wrong(everybody, first, message.count, out_.get());
    }
    case Collective::broadcast: return from_one(options_.root, rank == options_.root ? in_.get() : out_.get());
  }
  return 0;
}

}  // namespace trunkline
