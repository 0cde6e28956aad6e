// Completion queues, and the channels that tell of completions.
#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "fabric/device.h"
#include "fabric/queue_pair.h"

namespace trunkline {

class EventChannel;

// Holds no completions: it asks its queue pairs, in turn. So it never overflows.
class CompletionQueue {
 public:
  CompletionQueue(Context& context, int entries, void* user_context, ibv_comp_channel* channel);
  ~CompletionQueue();
  CompletionQueue(const CompletionQueue&) = delete;
  CompletionQueue& operator=(const CompletionQueue&) = delete;

  static CompletionQueue& of(ibv_cq* cq) { return *reinterpret_cast<Handle*>(cq)->self; }
  static CompletionQueue& of(ibv_cq_ex* cq) { return *reinterpret_cast<Handle*>(cq)->self; }
  ibv_cq* ibv() { return ibv_cq_ex_to_cq(&handle_.ex); }
  ibv_cq_ex* extended() { return &handle_.ex; }

  void add(QueuePair& pair);     // a queue pair is added once for each use that it makes of this
  void remove(QueuePair& pair);  // all of them
  bool in_use();

  int poll(int room, ibv_wc* completions);
  bool ready() { return poll(1, nullptr) > 0; }

  // The completion that the extended calls look at.
  ibv_wc current{};
  uint64_t current_ns = 0;

 private:
  struct Handle {
    ibv_cq_ex ex{};
    CompletionQueue* self = nullptr;
  };

  RdmaDevice& device_;
  Handle handle_;
  std::mutex mutex_;
  std::vector<QueuePair*> pairs_;
  size_t next_ = 0;  // whose turn it is
};

// A pipe that carries the addresses of completion queues that have something. Since nothing in the fabric has a thread
// of its own, the first queue that wants to be told of gets one for its channel, which looks and sleeps in turn.
class EventChannel {
 public:
  explicit EventChannel(ibv_context* context);
  ~EventChannel();
  EventChannel(const EventChannel&) = delete;
  EventChannel& operator=(const EventChannel&) = delete;

  static EventChannel& of(ibv_comp_channel* channel) { return *reinterpret_cast<Handle*>(channel)->self; }
  ibv_comp_channel* ibv() { return &handle_.ibv; }

  void arm(CompletionQueue& queue);
  void forget(CompletionQueue& queue);
  // As read(2) on the pipe: blocks, unless the program has made its descriptor non-blocking.
  CompletionQueue* next();

 private:
  struct Handle {
    ibv_comp_channel ibv{};
    EventChannel* self = nullptr;
  };

  // What the pipe carries.
  struct Notice {
    CompletionQueue* queue = nullptr;
  };

  void watch();

  Handle handle_;
  Pipe pipe_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<CompletionQueue*> armed_;
  bool stop_ = false;
  std::thread watcher_;
};

}  // namespace trunkline
