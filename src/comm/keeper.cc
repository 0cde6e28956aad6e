#include "comm/keeper.h"

#include <chrono>

#include "comm/frame_channel.h"

namespace trunkline {
namespace {

// A rank that waits asks every 2 to 100 ms.
constexpr std::chrono::milliseconds kBusy{5}, kIdle{50};

}  // namespace

Keeper::Keeper() : thread_([this] { run(); }) {}

Keeper::~Keeper() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Keeper::add(FrameChannel& channel) {
  const std::lock_guard lock(mutex_);
  channels_.push_back(&channel);
}

void Keeper::remove(FrameChannel& channel) {
  const std::lock_guard lock(mutex_);
  std::erase(channels_, &channel);
}

void Keeper::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    bool work = false;
    for (FrameChannel* channel : channels_) work = channel->serve() || work;
    changed_.wait_for(lock, work ? kBusy : kIdle, [this] { return stop_; });
  }
}

}  // namespace trunkline
