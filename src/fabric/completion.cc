#include "fabric/completion.h"

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "fabric/extended_poll.h"

namespace trunkline {

CompletionQueue::CompletionQueue(Context& context, int entries, void* user_context, ibv_comp_channel* channel)
    : device_(*context.device) {
  handle_.self = this;
  set_up_extended_poll(handle_.ex);
  ibv_cq_ex& cq = handle_.ex;
  cq.context = &context.verbs.context;
  cq.channel = channel;
  cq.cq_context = user_context;
  cq.cqe = entries;
  pthread_mutex_init(&cq.mutex, nullptr);
  pthread_cond_init(&cq.cond, nullptr);
  if (channel != nullptr) ++channel->refcnt;
}

CompletionQueue::~CompletionQueue() {
  if (handle_.ex.channel != nullptr) {
    EventChannel::of(handle_.ex.channel).forget(*this);
    --handle_.ex.channel->refcnt;
  }
  pthread_cond_destroy(&handle_.ex.cond);
  pthread_mutex_destroy(&handle_.ex.mutex);
}

void CompletionQueue::add(QueuePair& pair) {
  const std::lock_guard lock(mutex_);
  if (std::find(pairs_.begin(), pairs_.end(), &pair) == pairs_.end()) pairs_.push_back(&pair);
}

void CompletionQueue::remove(QueuePair& pair) {
  const std::lock_guard lock(mutex_);
  std::erase(pairs_, &pair);
  next_ = 0;
}

bool CompletionQueue::in_use() {
  const std::lock_guard lock(mutex_);
  return !pairs_.empty();
}

int CompletionQueue::poll(int room, ibv_wc* completions) {
  if (device_.fault(Call::poll_cq) != 0) return -1;
  const std::lock_guard lock(mutex_);
  LazyNow now;
  int count = 0;
  for (size_t i = 0; i < pairs_.size() && count < room; ++i) {
    QueuePair& pair = *pairs_[(next_ + i) % pairs_.size()];
    const auto free = [&] { return completions == nullptr ? nullptr : completions + count; };
    if (pair.ibv()->send_cq == ibv()) count += pair.poll_sends(free(), room - count, now);
    if (count < room && pair.ibv()->recv_cq == ibv()) count += pair.poll_receives(free(), room - count, now);
  }
  if (count > 0 && completions != nullptr) next_ = (next_ + 1) % pairs_.size();
  return count;
}

EventChannel::EventChannel(ibv_context* context) : pipe_(make_pipe()) {
  handle_.self = this;
  handle_.ibv.context = context;
  handle_.ibv.fd = pipe_.read.get();
  set_non_blocking(pipe_.write.get());  // a program that never reads loses events, not its watcher
}

EventChannel::~EventChannel() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

void EventChannel::arm(CompletionQueue& queue) {
  const std::lock_guard lock(mutex_);
  if (std::find(armed_.begin(), armed_.end(), &queue) == armed_.end()) armed_.push_back(&queue);
  if (!watcher_.joinable()) watcher_ = std::thread([this] { watch(); });
  changed_.notify_all();
}

void EventChannel::forget(CompletionQueue& queue) {
  const std::lock_guard lock(mutex_);
  std::erase(armed_, &queue);
}

CompletionQueue* EventChannel::next() {
  Notice notice;
  ssize_t got;
  do {
    got = ::read(handle_.ibv.fd, &notice, sizeof notice);
  } while (got < 0 && errno == EINTR);
  return got == sizeof notice ? notice.queue : nullptr;
}

void EventChannel::watch() {
  using std::chrono::microseconds;
  constexpr microseconds kShortest{20}, kLongest{500};
  microseconds pause = kShortest;
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (armed_.empty()) {
      changed_.wait(lock, [this] { return stop_ || !armed_.empty(); });
      pause = kShortest;
      continue;
    }
    const size_t before = armed_.size();
    std::erase_if(armed_, [this](CompletionQueue* queue) {
      const Notice notice{queue};
      return queue->ready() && ::write(pipe_.write.get(), &notice, sizeof notice) == sizeof notice;
    });
    pause = armed_.size() < before ? kShortest : std::min(pause * 2, kLongest);
    lock.unlock();
    std::this_thread::sleep_for(pause);
    lock.lock();
  }
}

}  // namespace trunkline
