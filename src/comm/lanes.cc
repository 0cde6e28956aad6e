#include "comm/lanes.h"

#include "comm/spin.h"

namespace trunkline {
namespace {

constexpr std::chrono::seconds kDrainPatience{5};

}  // namespace

Lanes::Lanes(std::vector<std::unique_ptr<Channel>> channels, Watch& watch, Workers workers)
    : channels_(std::move(channels)),
      watch_(watch),
      pool_(workers != Workers::per_call),
      spin_(spin_for(watch.members(), watch.rank(), channels_.size())),
      spans_(channels_.size()) {
  for (size_t lane = 1; lane < channels_.size(); ++lane) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    if (pool_) worker.thread = std::thread([this, &worker, lane] { work(worker, lane); });
  }
}

Lanes::~Lanes() {
  for (const auto& worker : workers_) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->stop = true;
    }
    worker->changed.notify_all();
    if (worker->thread.joinable()) worker->thread.join();
  }
}

void Lanes::run(size_t count, const Task& task) {
  Stopwatch& stopwatch = channels_[0]->stopwatch();
  const auto start_time = stopwatch.is_on() ? Clock::now() : Clock::time_point{};
  {
    const auto span = stopwatch.in(Activity::protocol);
    for (size_t lane = 1; lane < count; ++lane) start(lane, task);
    run_one(task, 0);
    const auto waiting = stopwatch.in(Activity::idle);
    for (size_t lane = 1; lane < count; ++lane) finish(lane);
  }
  if (start_time != Clock::time_point{}) busy_ns_ += static_cast<uint64_t>((Clock::now() - start_time).count());
  watch_.check();
}

void Lanes::drain() {
  const Deadline deadline = Deadline::after(kDrainPatience);
  for (const auto& channel : channels_) channel->drain(deadline);
}

void Lanes::start(size_t lane, const Task& task) {
  Worker& worker = *workers_[lane - 1];
  if (!pool_) {
    try {
      worker.thread = std::thread([this, &task, lane] { run_one(task, lane); });
    } catch (const std::exception& error) {
      watch_.fail_job(error);
    }
    return;
  }
  const std::lock_guard lock(worker.mutex);
  worker.task = &task;
  worker.changed.notify_all();
}

void Lanes::finish(size_t lane) {
  Worker& worker = *workers_[lane - 1];
  if (!pool_) {
    if (worker.thread.joinable()) worker.thread.join();
    return;
  }
  const auto done = [&] { return worker.task.load(std::memory_order_acquire) == nullptr; };
  spin_until(done);
  std::unique_lock lock(worker.mutex);
  worker.changed.wait(lock, done);
}

// Waking a thread that sleeps takes longer than a small message.
template <typename Done>
void Lanes::spin_until(Done done) const {
  if (spin_ == spin_.zero()) return;
  for (const auto start = Clock::now(); !done() && Clock::now() - start < spin_;) std::this_thread::yield();
}

void Lanes::work(Worker& worker, size_t lane) {
  const auto wanted = [&] { return worker.task.load(std::memory_order_acquire) != nullptr || worker.stop; };
  for (;;) {
    spin_until(wanted);
    {
      std::unique_lock lock(worker.mutex);
      worker.changed.wait(lock, wanted);
    }
    const Task* const task = worker.task;
    if (task == nullptr) return;
    run_one(*task, lane);
    {
      const std::lock_guard lock(worker.mutex);
      worker.task = nullptr;
    }
    worker.changed.notify_all();
  }
}

// A lane is idle while it waits for work during a run(): that is all of the run's time that its own stopwatch lacks.
Profile Lanes::profile() {
  std::array<uint64_t, kActivities> totals{};
  uint64_t measured = 0;
  for (const auto& channel : channels_) {
    channel->stopwatch().turn_on();
    for (size_t i = 0; i < kActivities; ++i) totals[i] += channel->stopwatch().total(static_cast<Activity>(i));
  }
  const auto since = [&](Activity activity) {
    const size_t i = static_cast<size_t>(activity);
    const uint64_t ns = totals[i] - std::min(told_[i], totals[i]);
    measured += ns;
    return static_cast<double>(ns) * 1e-9 / static_cast<double>(channels_.size());
  };
  Profile profile{.verbs = since(Activity::verbs),
                  .copy = since(Activity::copy),
                  .reduce = since(Activity::reduce),
                  .checksum = since(Activity::checksum),
                  .protocol = since(Activity::protocol),
                  .idle = since(Activity::idle)};
  const uint64_t busy_ns = busy_ns_;
  const double all = static_cast<double>(busy_ns - told_busy_ns_) * static_cast<double>(channels_.size());
  profile.idle += std::max(0.0, all - static_cast<double>(measured)) * 1e-9 / static_cast<double>(channels_.size());
  told_ = totals;
  told_busy_ns_ = busy_ns;
  return profile;
}

std::vector<LaneSpan> Lanes::spans() {
  keeps_spans_ = true;
  std::vector<LaneSpan> all;
  for (auto& of_lane : spans_) {
    all.insert(all.end(), of_lane.begin(), of_lane.end());
    of_lane.clear();
  }
  return all;
}

// The other lanes, on all ranks, learn of an error through the watch, and stop.
void Lanes::run_one(const Task& task, size_t lane) noexcept {
  const auto span = channels_[lane]->stopwatch().in(Activity::protocol);
  const auto start_time = keeps_spans_ ? Clock::now() : Clock::time_point{};
  try {
    task(*channels_[lane], lane);
  } catch (const std::exception& error) {
    watch_.fail_job(error);
  }
  if (keeps_spans_) spans_[lane].push_back({static_cast<int>(lane), start_time, Clock::now()});
}

}  // namespace trunkline
