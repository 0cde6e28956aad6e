// Lanes: the threads of a job. Each lane runs the whole of an operation on its stripe of the message; lane 0 is the
// caller's thread, the others are threads of their own: of a pool that sleep between operations, or made for each one.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/channel.h"
#include "comm/watch.h"

namespace trunkline {

class Lanes {
 public:
  using Task = std::function<void(Channel& channel, size_t lane)>;

  Lanes(std::vector<std::unique_ptr<Channel>> channels, Watch& watch, Workers workers);
  ~Lanes();

  size_t size() const { return channels_.size(); }
  const Channel& channel(size_t lane) const { return *channels_[lane]; }

  // Runs the task on the first `count` lanes. An error on one of them ends the job for all; throws what ended it.
  void run(size_t count, const Task& task);

  // After the last run.
  void drain();

  // Where the time of all run() went since the last call; see Group::profile().
  Profile profile();
  // When each lane worked since the last call; see Group::lane_spans().
  std::vector<LaneSpan> spans();

 private:
  struct Worker {
    std::mutex mutex;
    std::condition_variable changed;
    // Changed with the mutex held; looked at without while spinning.
    std::atomic<const Task*> task{nullptr};  // of a pool; null: none, or done
    std::atomic<bool> stop{false};
    std::thread thread;
  };

  void start(size_t lane, const Task& task);
  void finish(size_t lane);
  void work(Worker& worker, size_t lane);
  template <typename Done>
  void spin_until(Done done) const;
  void run_one(const Task& task, size_t lane) noexcept;

  std::vector<std::unique_ptr<Channel>> channels_;
  Watch& watch_;
  const bool pool_;
  const std::chrono::nanoseconds spin_;       // how long a thread looks for work, or for its end, before it sleeps
  std::atomic<uint64_t> busy_ns_{0};          // in run(), once the stopwatches are on
  std::array<uint64_t, kActivities> told_{};  // by profile(), of all lanes
  uint64_t told_busy_ns_ = 0;
  bool keeps_spans_ = false;
  std::vector<std::vector<LaneSpan>> spans_;      // by lane, each its own thread's during a run()
  std::vector<std::unique_ptr<Worker>> workers_;  // of lanes 1, 2, ...
};

}  // namespace trunkline
