#include "link/call_thread.h"

#include <condition_variable>
#include <mutex>

#include "base/fail.h"

namespace trunkline {

std::string hang_text(const std::string& subject, const char* call) {
  return fmt::format("{} hangs in {}: unplug and plug its cable; if that does not help, reboot", subject, call);
}

struct CallThread::Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> task;  // the next one
  bool end = false;
};

CallThread::CallThread(std::string subject, std::chrono::milliseconds patience)
    : subject_(std::move(subject)),
      patience_(patience),
      queue_(std::make_shared<Queue>()),
      thread_([queue = queue_] { work(queue); }) {}

CallThread::~CallThread() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->end = true;
  }
  queue_->changed.notify_one();
  if (hangs()) {
    thread_.detach();
  } else {
    thread_.join();
  }
}

void CallThread::work(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  for (;;) {
    queue->changed.wait(lock, [&] { return queue->task || queue->end; });
    if (!queue->task) return;
    std::function<void()> task = std::exchange(queue->task, nullptr);
    lock.unlock();
    task();
    task = nullptr;
    lock.lock();
  }
}

void CallThread::submit(const char* name, std::function<void()> task) {
  if (hangs()) give_up(name);
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->task = std::move(task);
  }
  queue_->changed.notify_one();
}

void CallThread::give_up(const char* name) {
  if (hangs_in_ == nullptr) hangs_in_ = name;
  fail(ErrorKind::system, "{}", hang_text(subject_, hangs_in_));
}

}  // namespace trunkline
