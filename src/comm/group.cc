#include "trunkline/group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/fail.h"
#include "comm/algorithms.h"
#include "comm/lanes.h"
#include "comm/transport.h"
#include "plan/collectives.h"

namespace trunkline {
namespace {

void check(const Config& config) {
  if (config.size < 1) fail(ErrorKind::input, "a job of {} ranks: there must be one at least", config.size);
  if (config.rank < 0 || config.rank >= config.size) {
    fail(ErrorKind::input, "rank {} of {}: ranks go from 0 to {}", config.rank, config.size, config.size - 1);
  }
  if (config.lanes < 0)
    fail(ErrorKind::input, "{} lanes: there must be one at least, or 0 to have it chosen", config.lanes);
  if (config.algorithm == Algorithm::ring) fail(ErrorKind::unsupported, "all-reduce by ring is not there yet");
  if (config.timeout <= config.timeout.zero()) fail(ErrorKind::input, "a timeout of {} ms", config.timeout.count());
}

Team everyone(const Config& config) {
  Team team{std::vector<size_t>(static_cast<size_t>(config.size)), static_cast<size_t>(config.rank)};
  std::iota(team.ranks.begin(), team.ranks.end(), size_t{0});
  return team;
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

class JobGroup final : public Group {
 public:
  explicit JobGroup(const Config& config) : JobGroup(config, connect_ranks(config)) {}
  ~JobGroup() override { watch_.leave(); }
  JobGroup(const JobGroup&) = delete;
  JobGroup& operator=(const JobGroup&) = delete;

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
      trunkline::all_gather(channel, operation, team_, own.subspan(stripe.begin, stripe.size()),
                            slices(all, ranks(), stripe));
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
      reduce_scatter(channel, operation, team_, slices(all, ranks(), stripe), sum.subspan(stripe.begin, stripe.size()));
    });
    if (!apart.empty()) std::memcpy(result.data(), apart.data(), block);
  }

  void broadcast(void* data, size_t count, Dtype dtype, int root) override {
    check_rank("broadcast", root);
    Operation operation = collective(Operation::Kind::broadcast, count, dtype);
    operation.root = root;
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::broadcast(channel, operation, team_,
                           bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void send(const void* data, size_t count, Dtype dtype, int to) override {
    const Operation operation = transfer(Operation::Kind::send, count, dtype, to);
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::send(channel, operation, team_,
                      bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void recv(void* data, size_t count, Dtype dtype, int from) override {
    const Operation operation = transfer(Operation::Kind::receive, count, dtype, from);
    run(operation, operation.bytes(), [&](Channel& channel, Range stripe) {
      trunkline::receive(channel, operation, team_,
                         bytes_of(data, operation.bytes()).subspan(stripe.begin, stripe.size()));
    });
  }

  void barrier() override {
    const Operation operation = collective(Operation::Kind::barrier, 0, Dtype::u8);
    run(operation, 0, [&](Channel& channel, Range) { trunkline::barrier(channel, operation, team_); });
  }

  void abort(const std::string& reason) override {
    watch_.fail_job(
        Error(ErrorKind::peer, fmt::format("{} failed: {}", watch_.who(static_cast<size_t>(rank_)), reason)));
  }

  void advance() override { watch_.advance(); }

  std::vector<CableTraffic> cables() const override {
    std::vector<CableTraffic> cables;
    for (size_t lane = 0; lane < lanes_.size(); ++lane) lanes_.channel(lane).add_traffic(cables);
    return cables;
  }

  Profile profile() override { return lanes_.profile(); }

 private:
  JobGroup(const Config& config, Connections wiring)
      : rank_(config.rank),
        size_(config.size),
        algorithm_(config.algorithm),
        team_(everyone(config)),
        transfers_(wiring.members.size(), 0),
        watch_(team_.place, std::move(wiring.members), std::move(wiring.control), config.timeout),
        lanes_(make_channels(config, std::move(wiring), watch_), watch_) {}

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
        broadcast_all_reduce(channel, operation, team_, own, result);
      } else {
        mesh_all_reduce(channel, operation, team_, segments(own, ranks()), segments(result, ranks()));
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
    watch_.begin(operation, team_);
    const size_t count = lanes_for(bytes, lanes_.size());
    lanes_.run(count, [&](Channel& channel, size_t lane) { f(channel, part_of(bytes, count, lane)); });
    watch_.end();
  }

  const int rank_;
  const int size_;
  const Algorithm algorithm_;
  const Team team_;
  uint64_t collectives_ = 0;
  std::vector<uint64_t> transfers_;  // by rank
  Watch watch_;
  Lanes lanes_;
};

}  // namespace

std::shared_ptr<Group> Group::connect(const Config& config) {
  check(config);
  return std::make_shared<JobGroup>(config);
}

}  // namespace trunkline
