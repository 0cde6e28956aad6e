#include "link/call_watch.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>

#include "base/log.h"
#include "link/call_thread.h"

namespace trunkline {
namespace {

// Looks are counted, not seconds: while this process is stopped, or its machine sleeps, nobody looks.
constexpr auto kInterval = std::chrono::milliseconds(500);
constexpr int kPatience = 5;

}  // namespace

CallWatch::CallWatch(std::function<void(const std::string&)> tell)
    : tell_(std::move(tell)), thread_([this] { work(); }) {}

CallWatch::~CallWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<CallWatch::Caller> CallWatch::add(std::string subject) {
  auto caller = std::make_shared<Caller>(std::move(subject));
  const std::lock_guard lock(mutex_);
  callers_.push_back(caller);
  return caller;
}

void CallWatch::work() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kInterval, [this] { return stop_; })) look();
}

void CallWatch::look() {
  std::erase_if(callers_, [](const auto& caller) { return caller.use_count() == 1; });
  for (const auto& caller : callers_) {
    const uint64_t steps = caller->steps_.load(std::memory_order_relaxed);
    caller->unchanged_ = steps % 2 == 1 && steps == caller->seen_ ? caller->unchanged_ + 1 : 0;
    caller->seen_ = steps;
    if (caller->unchanged_ >= kPatience) {
      end(hang_text(caller->subject_, caller->name_.load(std::memory_order_relaxed)));
    }
  }
}

void CallWatch::end(const std::string& message) {
  spdlog::error("{}. This process ends, since its thread does not come back", message);
  if (tell_) tell_(message);
  std::this_thread::sleep_for(std::chrono::seconds(1));
  ::_exit(1);
}

}  // namespace trunkline
