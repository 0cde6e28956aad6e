#include "comm/lanes.h"

namespace trunkline {

Lanes::Lanes(std::vector<std::unique_ptr<Channel>> channels, Watch& watch)
    : channels_(std::move(channels)), watch_(watch) {
  for (size_t lane = 1; lane < channels_.size(); ++lane) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& worker = *workers_.back();
    worker.thread = std::thread([this, &worker, lane] { work(worker, lane); });
  }
}

Lanes::~Lanes() {
  for (const auto& worker : workers_) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->stop = true;
    }
    worker->changed.notify_all();
    worker->thread.join();
  }
}

void Lanes::run(size_t count, const Task& task) {
  for (size_t lane = 1; lane < count; ++lane) {
    Worker& worker = *workers_[lane - 1];
    const std::lock_guard lock(worker.mutex);
    worker.task = &task;
    worker.changed.notify_all();
  }
  run_one(task, 0);
  for (size_t lane = 1; lane < count; ++lane) {
    Worker& worker = *workers_[lane - 1];
    std::unique_lock lock(worker.mutex);
    worker.changed.wait(lock, [&] { return worker.task == nullptr; });
  }
  watch_.check();
}

void Lanes::work(Worker& worker, size_t lane) {
  std::unique_lock lock(worker.mutex);
  for (;;) {
    worker.changed.wait(lock, [&] { return worker.task != nullptr || worker.stop; });
    if (worker.task == nullptr) return;
    const Task& task = *worker.task;
    lock.unlock();
    run_one(task, lane);
    lock.lock();
    worker.task = nullptr;
    worker.changed.notify_all();
  }
}

// The other lanes, on all ranks, learn of an error through the watch, and stop.
void Lanes::run_one(const Task& task, size_t lane) noexcept {
  try {
    task(*channels_[lane], lane);
  } catch (const Error& error) {
    watch_.fail_job(error);
  } catch (const std::exception& error) {
    watch_.fail_job(Error(ErrorKind::system, error.what()));
  }
}

}  // namespace trunkline
