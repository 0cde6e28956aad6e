// Keeper: looks after the channels of a rank while nobody is in an operation: a peer that waits for an answer, or for a
// frame that was lost, gets it though this rank computes. One thread for all lanes, which sleeps nearly always.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace trunkline {

class FrameChannel;

class Keeper {
 public:
  Keeper();
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  void add(FrameChannel& channel);
  // Once it returns, the channel is not touched any more.
  void remove(FrameChannel& channel);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<FrameChannel*> channels_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trunkline
