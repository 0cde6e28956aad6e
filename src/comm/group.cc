#include "trunkline/group.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "comm/collectives.h"

namespace trunkline {
namespace {

void check(const Config& config) {
  if (config.size < 1) fail(ErrorKind::input, "a job of {} ranks: there must be one at least", config.size);
  if (config.rank < 0 || config.rank >= config.size) {
    fail(ErrorKind::input, "rank {} of {}: ranks go from 0 to {}", config.rank, config.size, config.size - 1);
  }
  if (config.lanes < 0)
    fail(ErrorKind::input, "{} lanes: there must be one at least, or 0 to have it chosen", config.lanes);
  if (config.workers == Workers::single && config.lanes > 1) {
    fail(ErrorKind::input, "{} lanes with workers \"single\": one thread drives one lane, over all cables",
         config.lanes);
  }
  if (config.frame_bytes % 64 != 0) {
    fail(ErrorKind::input, "frames of {} bytes: it must be a multiple of 64", config.frame_bytes);
  }
  if (config.timeout <= config.timeout.zero()) fail(ErrorKind::input, "a timeout of {} ms", config.timeout.count());
}

class JobGroup final : public Group {
 public:
  JobGroup(std::shared_ptr<Job> job, std::shared_ptr<const Team> team, uint32_t id)
      : job_(std::move(job)), collectives_(*job_, std::move(team), id) {}

  int rank() const override { return static_cast<int>(team().place); }
  int size() const override { return static_cast<int>(collectives_.ranks()); }

  std::string host_of(int rank) const override {
    collectives_.check_rank("host_of", rank);
    return job_->watch().members()[team().ranks[static_cast<size_t>(rank)]].host;
  }

  void all_sum(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(collectives_.all_reduce(Reduction::sum, in, out, count, dtype));
  }
  void all_max(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(collectives_.all_reduce(Reduction::max, in, out, count, dtype));
  }
  void all_min(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(collectives_.all_reduce(Reduction::min, in, out, count, dtype));
  }
  void all_gather(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(collectives_.all_gather(in, out, count, dtype));
  }
  void sum_scatter(const void* in, void* out, size_t count, Dtype dtype) override {
    calls().run(collectives_.sum_scatter(in, out, count, dtype));
  }
  void broadcast(void* data, size_t count, Dtype dtype, int root) override {
    calls().run(collectives_.broadcast(data, count, dtype, root));
  }
  void send(const void* data, size_t count, Dtype dtype, int to) override {
    calls().run(collectives_.send(data, count, dtype, to));
  }
  void recv(void* data, size_t count, Dtype dtype, int from) override {
    calls().run(collectives_.receive(data, count, dtype, from));
  }
  void barrier() override { calls().run(collectives_.barrier()); }

  Work all_sum_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(collectives_.all_reduce(Reduction::sum, in, out, count, dtype));
  }
  Work all_max_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(collectives_.all_reduce(Reduction::max, in, out, count, dtype));
  }
  Work all_min_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(collectives_.all_reduce(Reduction::min, in, out, count, dtype));
  }
  Work all_gather_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(collectives_.all_gather(in, out, count, dtype));
  }
  Work sum_scatter_async(const void* in, void* out, size_t count, Dtype dtype) override {
    return calls().start(collectives_.sum_scatter(in, out, count, dtype));
  }
  Work broadcast_async(void* data, size_t count, Dtype dtype, int root) override {
    return calls().start(collectives_.broadcast(data, count, dtype, root));
  }
  Work send_async(const void* data, size_t count, Dtype dtype, int to) override {
    return calls().start(collectives_.send(data, count, dtype, to));
  }
  Work recv_async(void* data, size_t count, Dtype dtype, int from) override {
    return calls().start(collectives_.receive(data, count, dtype, from));
  }
  Work barrier_async() override { return calls().start(collectives_.barrier()); }

  std::shared_ptr<Group> split(int color, int key) override {
    // Numbers are such that no rank is in two groups of the same one.
    struct Wish {
      int32_t color, key;
      uint32_t next_group;
    };
    const Wish own{color, key, job_->next_group};
    std::vector<Wish> wishes(collectives_.ranks());
    all_gather(&own, wishes.data(), sizeof own, Dtype::u8);

    std::set<int32_t> colors;
    std::vector<size_t> places;
    uint32_t first_number = 0;
    for (size_t place = 0; place < collectives_.ranks(); ++place) {
      first_number = std::max(first_number, wishes[place].next_group);
      if (wishes[place].color >= 0) colors.insert(wishes[place].color);
      if (wishes[place].color == color) places.push_back(place);
    }
    job_->next_group = first_number + static_cast<uint32_t>(colors.size());
    if (color < 0) return nullptr;

    std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) { return wishes[a].key < wishes[b].key; });
    Team chosen;
    for (const size_t place : places) {
      if (place == team().place) chosen.place = chosen.ranks.size();
      chosen.ranks.push_back(team().ranks[place]);
    }
    const auto index = std::distance(colors.begin(), colors.find(color));
    return std::make_shared<JobGroup>(job_, std::make_shared<const Team>(std::move(chosen)),
                                      first_number + static_cast<uint32_t>(index));
  }

  void abort(const std::string& reason) override {
    Watch& watch = job_->watch();
    watch.fail_job(Error(ErrorKind::peer, fmt::format("{} failed: {}", watch.who(team().ranks[team().place]), reason)));
  }

  void advance() override { job_->watch().advance(); }

  std::vector<CableTraffic> cables() const override {
    std::vector<CableTraffic> cables;
    for (size_t lane = 0; lane < job_->lanes().size(); ++lane) job_->lanes().channel(lane).add_traffic(cables);
    return cables;
  }

  Profile profile() override { return job_->lanes().profile(); }
  std::vector<LaneSpan> lane_spans() override { return job_->lanes().spans(); }

 private:
  const Team& team() const { return collectives_.team(); }
  Calls& calls() { return job_->calls(); }

  const std::shared_ptr<Job> job_;
  Collectives collectives_;
};

}  // namespace

std::shared_ptr<Group> group_of(std::shared_ptr<Job> job) {
  Team team{std::vector<size_t>(job->paths().size()), job->watch().rank()};
  std::iota(team.ranks.begin(), team.ranks.end(), size_t{0});
  return std::make_shared<JobGroup>(std::move(job), std::make_shared<const Team>(std::move(team)), 0);
}

std::shared_ptr<Group> Group::connect(const Config& config) {
  check(config);
  return group_of(std::make_shared<Job>(config));
}

}  // namespace trunkline
