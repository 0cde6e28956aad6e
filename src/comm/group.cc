#include "trunkline/group.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "base/fail.h"
#include "comm/algorithms.h"
#include "comm/lanes.h"
#include "comm/stream_channel.h"
#include "link/rendezvous.h"
#include "link/socket.h"
#include "plan/collectives.h"

namespace trunkline {
namespace {

constexpr std::chrono::microseconds kSpin{20};

// The wires of a job of one rank.
Connections alone() {
  Connections wiring;
  wiring.members.resize(1);
  wiring.members[0].host = host_name();
  wiring.control.resize(1);
  wiring.lanes.resize(1);
  wiring.lanes[0].resize(1);
  return wiring;
}

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

void check(const Config& config) {
  if (config.size < 1) fail(ErrorKind::input, "a job of {} ranks: there must be one at least", config.size);
  if (config.rank < 0 || config.rank >= config.size) {
    fail(ErrorKind::input, "rank {} of {}: ranks go from 0 to {}", config.rank, config.size, config.size - 1);
  }
  if (config.lanes < 0)
    fail(ErrorKind::input, "{} lanes: there must be one at least, or 0 to have it chosen", config.lanes);
  if (config.timeout <= config.timeout.zero()) fail(ErrorKind::input, "a timeout of {} ms", config.timeout.count());
}

Connections connect_ranks(const Config& config) {
  if (config.size == 1) return alone();
  Place place;
  place.rank = config.rank;
  place.size = config.size;
  place.coordinator = config.coordinator;
  place.listen_fd = config.listen_fd;
  place.job_key = config.job_key;
  place.timeout = config.timeout;
  place.lanes = config.lanes;
  const bool one_host = Address::resolve(config.coordinator).front().loopback();
  place.default_lanes = default_lanes(cores(), one_host ? config.size : 1);
  return rendezvous(place);
}

// Threads that wait may spin only where every thread of every rank of this host, and one that computes, has a core.
std::chrono::nanoseconds spin_for(const std::vector<Member>& members, int rank, size_t lanes) {
  const std::string& host = members[static_cast<size_t>(rank)].host;
  const auto neighbours =
      std::count_if(members.begin(), members.end(), [&](const Member& m) { return m.host == host; });
  const bool spare = neighbours * static_cast<int>(lanes + 1) <= cores();
  return spare ? kSpin : std::chrono::nanoseconds(0);
}

bool overlap(ConstBytes a, ConstBytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}

// Part `range` of each of the equal blocks that `bytes` is made of.
template <typename Byte>
std::vector<std::span<Byte>> slices(std::span<Byte> bytes, size_t blocks, Range range) {
  std::vector<std::span<Byte>> result;
  const size_t block = bytes.size() / blocks;
  for (size_t i = 0; i < blocks; ++i) result.push_back(bytes.subspan(i * block + range.begin, range.size()));
  return result;
}

// The near-equal blocks that a stripe is cut into, one a rank.
template <typename Byte>
std::vector<std::span<Byte>> segments(std::span<Byte> stripe, size_t ranks) {
  std::vector<std::span<Byte>> result;
  for (size_t i = 0; i < ranks; ++i) {
    const Range range = part_of(stripe.size(), ranks, i);
    result.push_back(stripe.subspan(range.begin, range.size()));
  }
  return result;
}

class TcpGroup final : public Group {
 public:
  explicit TcpGroup(const Config& config) : TcpGroup(config, connect_ranks(config)) {}
  ~TcpGroup() override { watch_.leave(); }
  TcpGroup(const TcpGroup&) = delete;
  TcpGroup& operator=(const TcpGroup&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  std::string host_of(int rank) const override {
    check_rank("host_of", rank);
    return watch_.members()[static_cast<size_t>(rank)].host;
  }

  void all_sum(const void* in, void* out, size_t count, Dtype dtype) override {
    all_reduce(Reduction::sum, in, out, count, dtype);
  }
  void all_max(const void* in, void* out, size_t count, Dtype dtype) override {
    all_reduce(Reduction::max, in, out, count, dtype);
  }
  void all_min(const void* in, void* out, size_t count, Dtype dtype) override {
    all_reduce(Reduction::min, in, out, count, dtype);
  }

  void all_gather(const void* in, void* out, size_t count, Dtype dtype) override {
    Operation operation = collective(Operation::Kind::all_gather, count, dtype);
    const size_t block = operation.bytes();
    const Bytes all = bytes_of(out, block * ranks());
    const Bytes own_block = all.subspan(block * static_cast<size_t>(rank_), block);
    ConstBytes own = bytes_of(in, block);
    if (overlap(own, all) && own.data() != own_block.data()) {
      // What arrives would overwrite what is still to be sent.
      std::memmove(own_block.data(), own.data(), block);
      own = own_block;
    }
    run(operation, block, [&](Channel& channel, Range stripe) {
      trunkline::all_gather(channel, operation, own.subspan(stripe.begin, stripe.size()), slices(all, ranks(), stripe));
    });
  }

  void sum_scatter(const void* in, void* out, size_t count, Dtype dtype) override {
    Operation operation = collective(Operation::Kind::sum_scatter, count, dtype);
    const size_t block = operation.bytes();
    const ConstBytes all = bytes_of(in, block * ranks());
    const Bytes result = bytes_of(out, block);
    std::vector<std::byte> apart;
    Bytes sum = result;
    if (overlap(result, all) && result.data() != all.data() + block * static_cast<size_t>(rank_)) {
      apart.resize(block);  // the sum would overwrite what is still to be sent
      sum = apart;
    }
    run(operation, block, [&](Channel& channel, Range stripe) {
      reduce_scatter(channel, operation, slices(all, ranks(), stripe), sum.subspan(stripe.begin, stripe.size()));
    });
    if (!apart.empty()) std::memcpy(result.data(), apart.data(), block);
  }

  void broadcast(void* data, size_t count, Dtype dtype, int root) override {
    check_rank("broadcast", root);
    Operation operation = collective(Operation::Kind::broadcast, count, dtype);
    operation.root = root;
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::broadcast(channel, operation, bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void send(const void* data, size_t count, Dtype dtype, int to) override {
    const Operation operation = transfer(Operation::Kind::send, count, dtype, to);
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::send(channel, operation, bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void recv(void* data, size_t count, Dtype dtype, int from) override {
    const Operation operation = transfer(Operation::Kind::receive, count, dtype, from);
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::receive(channel, operation, bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void barrier() override {
    const Operation operation = collective(Operation::Kind::barrier, 0, Dtype::u8);
    run(operation, 0, [&](Channel& channel, Range) { trunkline::barrier(channel, operation); });
  }

  void abort(const std::string& reason) override {
    watch_.fail_job(
        Error(ErrorKind::peer, fmt::format("{} failed: {}", watch_.who(static_cast<size_t>(rank_)), reason)));
  }

  void advance() override { watch_.advance(); }

 private:
  TcpGroup(const Config& config, Connections wiring)
      : rank_(config.rank),
        size_(config.size),
        algorithm_(config.algorithm),
        transfers_(wiring.members.size(), 0),
        watch_(static_cast<size_t>(config.rank), std::move(wiring.members), std::move(wiring.control), config.timeout),
        lanes_(channels(std::move(wiring.lanes)), watch_) {}

  std::vector<std::unique_ptr<Channel>> channels(std::vector<std::vector<TcpLink>> lanes) {
    const StreamChannel::Options options{kFrameBytes, spin_for(watch_.members(), rank_, lanes.size())};
    std::vector<std::unique_ptr<Channel>> result;
    for (auto& links : lanes) {
      result.push_back(std::make_unique<StreamChannel>(static_cast<size_t>(rank_), std::move(links), watch_, options));
    }
    return result;
  }

  size_t ranks() const { return static_cast<size_t>(size_); }

  static ConstBytes bytes_of(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }
  static Bytes bytes_of(void* data, size_t size) { return {static_cast<std::byte*>(data), size}; }

  void check_rank(const char* call, int rank) const {
    if (rank < 0 || rank >= size_) fail(ErrorKind::input, "{}: rank {} of {}", call, rank, size_);
  }

  // Refuses what no memory could hold, before it overflows.
  void check_message(const char* call, size_t count, Dtype dtype) const {
    if (size_of(dtype) == 0) fail(ErrorKind::input, "{}: no such dtype ({})", call, static_cast<int>(dtype));
    if (count > SIZE_MAX / 2 / size_of(dtype) / ranks())
      fail(ErrorKind::input, "{} of {} {}", call, count, name_of(dtype));
  }

  Operation collective(Operation::Kind kind, size_t count, Dtype dtype) {
    check_message("a collective", count, dtype);
    return {.number = ++collectives_, .count = count, .kind = kind, .dtype = dtype};
  }

  Operation transfer(Operation::Kind kind, size_t count, Dtype dtype, int peer) {
    const char* const call = kind == Operation::Kind::send ? "send" : "recv";
    check_message(call, count, dtype);
    check_rank(call, peer);
    if (peer == rank_) fail(ErrorKind::input, "{}: rank {} is this rank itself", call, peer);
    return {
        .number = ++transfers_[static_cast<size_t>(peer)], .count = count, .kind = kind, .dtype = dtype, .root = peer};
  }

  void all_reduce(Reduction reduction, const void* in, void* out, size_t count, Dtype dtype) {
    Operation operation = collective(Operation::Kind::all_reduce, count, dtype);
    operation.reduction = reduction;
    operation.algorithm = algorithm_for(operation.bytes());
    const ConstBytes from = bytes_of(in, operation.bytes());
    const Bytes to = bytes_of(out, operation.bytes());
    if (in != out && overlap(from, to)) {
      fail(ErrorKind::input, "{}: the buffers overlap without being the same", operation.text());
    }
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      const ConstBytes own = from.subspan(stripe.begin, stripe.size());
      const Bytes result = to.subspan(stripe.begin, stripe.size());
      if (operation.algorithm == Algorithm::broadcast) {
        broadcast_all_reduce(channel, operation, own, result);
      } else {
        mesh_all_reduce(channel, operation, segments(own, ranks()), segments(result, ranks()));
      }
    });
  }

  Algorithm algorithm_for(size_t bytes) const {
    if (algorithm_ != Algorithm::automatic) return algorithm_;
    return prefers_broadcast(size_, bytes) ? Algorithm::broadcast : Algorithm::mesh;
  }

  // Runs f(channel, stripe) on each lane that the message has a stripe for.
  template <typename F>
  void run(const Operation& operation, size_t bytes, F f) {
    watch_.begin(operation);
    const size_t count = lanes_for(bytes, lanes_.size());
    lanes_.run(count, [&](Channel& channel, size_t lane) { f(channel, part_of(bytes, count, lane)); });
    watch_.end();
  }

  const int rank_;
  const int size_;
  const Algorithm algorithm_;
  uint64_t collectives_ = 0;
  std::vector<uint64_t> transfers_;  // by rank
  Watch watch_;
  Lanes lanes_;
};

}  // namespace

std::shared_ptr<Group> Group::connect(const Config& config) {
  check(config);
  return std::make_shared<TcpGroup>(config);
}

}  // namespace trunkline
