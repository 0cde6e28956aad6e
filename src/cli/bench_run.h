// Runs one collective at one size on a group, as often as asked, and measures it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/bench_data.h"
#include "cli/bench_figures.h"
#include "trunkline/group.h"

namespace trunkline {

struct BenchOptions {
  Collective collective = Collective::allreduce;
  std::vector<size_t> sizes;  // bytes
  int iterations = 20;
  int warmup = 5;
  Dtype dtype = Dtype::f32;
  int root = 0;
  bool in_place = false;  // all-reduce alone
  bool one_way = false;   // sendrecv of two ranks: only rank 0 sends
  bool check = false;
  bool profile = false;
};

// Nanoseconds of a KiB of the message that a rank's lane threads spent (their mean), and what it costs to copy it once.
struct NsPerKib {
  double verbs = 0, copy = 0, reduce = 0, checksum = 0, protocol = 0, idle = 0;
  double memcpy = 0;
};

struct CableBytes {
  std::string id;
  int peer = 0;
  uint64_t sent = 0, received = 0;  // a call
};

struct BenchResult {
  Message message;
  Times us;                        // of the rank that took longest; a message's: half a round trip counts as one
  double algorithm_bytes_s = 0;    // algorithm bandwidth
  double bus_bytes_s = 0;          // bus bandwidth
  double cpu_us = 0;               // processor time of this rank, all threads, a message
  std::optional<uint64_t> wrong;   // elements, of all ranks and iterations; none without check
  std::vector<CableBytes> cables;  // of this rank
  std::vector<NsPerKib> parts;     // by rank; empty without profile, or if there are no bytes
};

class BenchRun {
 public:
  // Takes two buffers of the largest size. Throws Error(input) for what this group cannot do.
  BenchRun(Group& group, const BenchOptions& options);

  // The same on every rank, but for what is this rank's own.
  BenchResult measure(size_t bytes);

 private:
  enum class Exchange { none, ping_pong, one_way, ring };  // what sendrecv is

  void call(const Message& message);
  void send_and_receive(const Message& message);
  double messages_a_call() const { return exchange_ == Exchange::ping_pong ? 2 : 1; }

  std::vector<double> time_calls(const Message& message);
  std::vector<double> slowest(const std::vector<double>& own);
  std::vector<NsPerKib> parts_of_all(const Message& message, const Profile& own, double seconds_to_copy);
  double seconds_to_copy(size_t bytes);

  uint64_t check(const Message& message);
  size_t wrong_here(const Message& message, const BenchData& data) const;

  Group& group_;
  const BenchOptions options_;
  const size_t rank_, size_;
  Exchange exchange_ = Exchange::none;
  uint64_t seed_ = 0;
  std::unique_ptr<std::byte[]> in_, out_;
};

}  // namespace trunkline
