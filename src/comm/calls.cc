#include "comm/calls.h"

namespace trunkline {

bool Work::done() const {
  if (state_ == nullptr) return true;
  const std::lock_guard lock(state_->mutex);
  return state_->done;
}

void Work::wait() {
  if (state_ == nullptr) return;
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->done; });
  if (state_->error) std::rethrow_exception(state_->error);
}

void Calls::run(const Call& call) {
  {
    const std::lock_guard lock(mutex_);
    if (started_.empty()) {
      call();
      return;
    }
  }
  start(call).wait();
}

Work Calls::start(Call call) {
  auto state = std::make_shared<Work::State>();
  {
    const std::lock_guard lock(mutex_);
    started_.push_back({std::move(call), state});
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  }
  changed_.notify_one();
  return Work(std::move(state));
}

void Calls::finish() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Calls::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return !started_.empty() || stop_; });
    if (started_.empty()) return;
    Started& now = started_.front();
    lock.unlock();
    std::exception_ptr error;
    try {
      now.call();
    } catch (const std::exception& thrown) {
      error = std::current_exception();
      failed_(thrown);
    }
    const std::shared_ptr<Work::State> state = std::move(now.state);
    lock.lock();
    started_.pop_front();  // before anyone learns that it is done, and makes the next call
    lock.unlock();
    {
      const std::lock_guard state_lock(state->mutex);
      state->error = std::move(error);
      state->done = true;
    }
    state->changed.notify_all();
    lock.lock();
  }
}

}  // namespace trunkline
