#include "trunkline/group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "comm/algorithms.h"
#include "comm/job.h"

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
  if (config.workers == Workers::single && config.lanes > 1) {
    fail(ErrorKind::input, "{} lanes with workers \"single\": one thread drives one lane, over all cables",
         config.lanes);
  }
  if (config.timeout <= config.timeout.zero()) fail(ErrorKind::input, "a timeout of {} ms", config.timeout.count());
}

std::shared_ptr<const Team> everyone(const Config& config) {
  Team team{std::vector<size_t>(static_cast<size_t>(config.size)), static_cast<size_t>(config.rank)};
  std::iota(team.ranks.begin(), team.ranks.end(), size_t{0});
  return std::make_shared<const Team>(std::move(team));
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
  JobGroup(std::shared_ptr<Job> job, std::shared_ptr<const Team> team, uint32_t id)
      : job_(std::move(job)), team_(std::move(team)), id_(id), transfers_(team_->ranks.size(), 0) {}

  int rank() const override { return static_cast<int>(team_->place); }
  int size() const override { return static_cast<int>(ranks()); }

  std::string host_of(int rank) const override {
    check_rank("host_of", rank);
    return job_->watch().members()[team_->ranks[static_cast<size_t>(rank)]].host;
  }

  void all_sum(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(all_reduce_call(Reduction::sum, in, out, count, dtype));
  }
  void all_max(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(all_reduce_call(Reduction::max, in, out, count, dtype));
  }
  void all_min(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(all_reduce_call(Reduction::min, in, out, count, dtype));
  }
  void all_gather(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(all_gather_call(in, out, count, dtype));
  }
  void sum_scatter(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(sum_scatter_call(in, out, count, dtype));
  }
  void broadcast(void* data, size_t count, Dtype dtype, int root) override {
    calls().run(broadcast_call(data, count, dtype, root));
  }
  void send(const void* data, size_t count, Dtype dtype, int to) override {
    calls().run(send_call(data, count, dtype, to));
  }
  void recv(void* data, size_t count, Dtype dtype, int from) override {
    calls().run(recv_call(data, count, dtype, from));
  }
  void barrier() override { calls().run(barrier_call()); }

  Work all_sum_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(all_reduce_call(Reduction::sum, in, out, count, dtype));
  }
  Work all_max_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(all_reduce_call(Reduction::max, in, out, count, dtype));
  }
  Work all_min_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(all_reduce_call(Reduction::min, in, out, count, dtype));
  }
  Work all_gather_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(all_gather_call(in, out, count, dtype));
  }
  Work sum_scatter_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(sum_scatter_call(in, out, count, dtype));
  }
  Work broadcast_async(void* data, size_t count, Dtype dtype, int root) override {
    return calls().start(broadcast_call(data, count, dtype, root));
  }
  Work send_async(const void* data, size_t count, Dtype dtype, int to) override {
    return calls().start(send_call(data, count, dtype, to));
  }
  Work recv_async(void* data, size_t count, Dtype dtype, int from) override {
    return calls().start(recv_call(data, count, dtype, from));
  }
  Work barrier_async() override { return calls().start(barrier_call()); }

  std::shared_ptr<Group> split(int color, int key) override {
    // Numbers are such that no rank is in two groups of the same one.
    struct Wish {
      int32_t color, key;
      uint32_t next_group;
    };
    const Wish own{color, key, job_->next_group};
    std::vector<Wish> wishes(ranks());
    all_gather(&own, wishes.data(), sizeof own, Dtype::u8);

    std::set<int32_t> colors;
    std::vector<size_t> places;
    uint32_t first_number = 0;
    for (size_t place = 0; place < ranks(); ++place) {
      first_number = std::max(first_number, wishes[place].next_group);
      if (wishes[place].color >= 0) colors.insert(wishes[place].color);
      if (wishes[place].color == color) places.push_back(place);
    }
    job_->next_group = first_number + static_cast<uint32_t>(colors.size());
    if (color < 0) return nullptr;

    std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return wishes[a].key < wishes[b].key; });
    Team team;
    for (const size_t place : places) {
      if (place == team_->place) team.place = team.ranks.size();
      team.ranks.push_back(team_->ranks[place]);
    }
    const auto index = std::distance(colors.begin(), colors.find(color));
    return std::make_shared<JobGroup>(job_, std::make_shared<const Team>(std::move(team)),
                                      first_number + static_cast<uint32_t>(index));
  }

  void abort(const std::string& reason) override {
    Watch& watch = job_->watch();
    watch.fail_job(Error(ErrorKind::peer, fmt::format("{} failed: {}", watch.who(team_->ranks[team_->place]), reason)));
  }

  void advance() override { job_->watch().advance(); }

  std::vector<CableTraffic> cables() const override {
    std::vector<CableTraffic> cables;
    for (size_t lane = 0; lane < job_->lanes().size(); ++lane) job_->lanes().channel(lane).add_traffic(cables);
    return cables;
  }

  Profile profile() override { return job_->lanes().profile(); }

 private:
  using Call = Calls::Call;

  Calls& calls() { return job_->calls(); }
  size_t ranks() const { return team_->ranks.size(); }

  static ConstBytes bytes_of(const void* data, size_t size) { return {static_cast<const std::byte*>(data), size}; }
  static Bytes bytes_of(void* data, size_t size) { return {static_cast<std::byte*>(data), size}; }

  void check_rank(const char* call, int rank) const {
    if (rank < 0 || rank >= size()) fail(ErrorKind::input, "{}: rank {} of {}", call, rank, size());
  }

  // Refuses what no memory could hold, before it overflows.
  void check_message(const char* call, size_t count, Dtype dtype) const {
    if (size_of(dtype) == 0) fail(ErrorKind::input, "{}: no such dtype ({})", call, static_cast<int>(dtype));
    if (count > SIZE_MAX / 2 / size_of(dtype) / ranks())
      fail(ErrorKind::input, "{} of {} {}", call, count, name_of(dtype));
  }

  // Counted only once nothing can be wrong with it any more.
  Operation collective(Operation::Kind kind, size_t count, Dtype dtype) {
    check_message("a collective", count, dtype);
    return {.number = ++collectives_, .count = count, .kind = kind, .dtype = dtype, .group = id_};
  }

  Operation transfer(Operation::Kind kind, size_t count, Dtype dtype, int peer) {
    const char* const call = kind == Operation::Kind::send ? "send" : "recv";
    check_message(call, count, dtype);
    check_rank(call, peer);
    if (peer == rank()) fail(ErrorKind::input, "{}: rank {} is this rank itself", call, peer);
    return {.number = ++transfers_[static_cast<size_t>(peer)],
            .count = count,
            .kind = kind,
            .dtype = dtype,
            .root = peer,
            .group = id_};
  }

  // The call that runs f(channel, team, stripe) on each lane that a message of so many bytes has a stripe for. It may
  // be made when this group is gone, while the job is there.
  template <typename F>
  Call call(const Operation& operation, size_t bytes, F f) {
    return [&job = *job_, team = team_, operation, bytes, f = std::move(f)] {
      job.run(operation, *team, bytes, [&](Channel& channel, Range stripe) { f(channel, *team, stripe); });
    };
  }

  Call all_reduce_call(Reduction reduction, const void* in, void* out, size_t count, Dtype dtype) {
    check_message("a collective", count, dtype);
    const ConstBytes from = bytes_of(in, count * size_of(dtype));
    const Bytes to = bytes_of(out, count * size_of(dtype));
    if (in != out && overlap(from, to)) {
      fail(ErrorKind::input, "an all-reduce of {} {}: the buffers overlap without being the same", count,
           name_of(dtype));
    }
    Operation operation = collective(Operation::Kind::all_reduce, count, dtype);
    operation.reduction = reduction;
    operation.algorithm = algorithm_for(operation.bytes());
    return call(operation, from.size(), [=](Channel& channel, const Team& team, Range stripe) {
      const ConstBytes own = from.subspan(stripe.begin, stripe.size());
      const Bytes result = to.subspan(stripe.begin, stripe.size());
      if (operation.algorithm == Algorithm::broadcast) {
        broadcast_all_reduce(channel, operation, team, own, result);
      } else {
        const size_t ranks = team.ranks.size();
        mesh_all_reduce(channel, operation, team, segments(own, ranks), segments(result, ranks));
      }
    });
  }

  Call all_gather_call(const void* in, void* out, size_t count, Dtype dtype) {
    const Operation operation = collective(Operation::Kind::all_gather, count, dtype);
    const size_t block = operation.bytes();
    const Bytes all = bytes_of(out, block * ranks());
    const Bytes own_block = all.subspan(block * team_->place, block);
    ConstBytes own = bytes_of(in, block);
    // What arrives would overwrite what is still to be sent.
    const bool moves = overlap(own, all) && own.data() != own_block.data();
    const ConstBytes from = moves ? ConstBytes(own_block) : own;
    Call gather = call(operation, block, [=](Channel& channel, const Team& team, Range stripe) {
      trunkline::all_gather(channel, operation, team, from.subspan(stripe.begin, stripe.size()),
                            slices(all, team.ranks.size(), stripe));
    });
    if (!moves) return gather;
    return [=] {
      std::memmove(own_block.data(), own.data(), own.size());
      gather();
    };
  }

  Call sum_scatter_call(const void* in, void* out, size_t count, Dtype dtype) {
    const Operation operation = collective(Operation::Kind::sum_scatter, count, dtype);
    const size_t block = operation.bytes();
    const ConstBytes all = bytes_of(in, block * ranks());
    const Bytes result = bytes_of(out, block);
    const auto scatter_to = [=, this](Bytes sum) {
      return call(operation, block, [=](Channel& channel, const Team& team, Range stripe) {
        reduce_scatter(channel, operation, team, slices(all, team.ranks.size(), stripe),
                       sum.subspan(stripe.begin, stripe.size()));
      });
    };
    if (!overlap(result, all) || result.data() == all.data() + block * team_->place) return scatter_to(result);
    // The sum would overwrite what is still to be sent.
    const auto apart = std::make_shared<std::vector<std::byte>>(block);
    return [=, scatter = scatter_to(*apart)] {
      scatter();
      std::memcpy(result.data(), apart->data(), result.size());
    };
  }

  Call broadcast_call(void* data, size_t count, Dtype dtype, int root) {
    check_rank("broadcast", root);
    Operation operation = collective(Operation::Kind::broadcast, count, dtype);
    operation.root = root;
    const Bytes all = bytes_of(data, operation.bytes());
    return call(operation, all.size(), [=](Channel& channel, const Team& team, Range stripe) {
      trunkline::broadcast(channel, operation, team, all.subspan(stripe.begin, stripe.size()));
    });
  }

  Call send_call(const void* data, size_t count, Dtype dtype, int to) {
    const Operation operation = transfer(Operation::Kind::send, count, dtype, to);
    const ConstBytes all = bytes_of(data, operation.bytes());
    return call(operation, all.size(), [=](Channel& channel, const Team& team, Range stripe) {
      trunkline::send(channel, operation, team, all.subspan(stripe.begin, stripe.size()));
    });
  }

  Call recv_call(void* data, size_t count, Dtype dtype, int from) {
    const Operation operation = transfer(Operation::Kind::receive, count, dtype, from);
    const Bytes all = bytes_of(data, operation.bytes());
    return call(operation, all.size(), [=](Channel& channel, const Team& team, Range stripe) {
      trunkline::receive(channel, operation, team, all.subspan(stripe.begin, stripe.size()));
    });
  }

  Call barrier_call() {
    const Operation operation = collective(Operation::Kind::barrier, 0, Dtype::u8);
    return call(operation, 0,
                [=](Channel& channel, const Team& team, Range) { trunkline::barrier(channel, operation, team); });
  }

  Algorithm algorithm_for(size_t bytes) const {
    if (job_->algorithm() != Algorithm::automatic) return job_->algorithm();
    return prefers_broadcast(size(), bytes) ? Algorithm::broadcast : Algorithm::mesh;
  }

  const std::shared_ptr<Job> job_;
  const std::shared_ptr<const Team> team_;
  const uint32_t id_;
  uint64_t collectives_ = 0;
  std::vector<uint64_t> transfers_;  // by place
};

}  // namespace

std::shared_ptr<Group> Group::connect(const Config& config) {
  check(config);
  return std::make_shared<JobGroup>(std::make_shared<Job>(config), everyone(config), 0);
}

}  // namespace trunkline
