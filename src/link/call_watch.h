// The same care for the calls of lanes to a device in the course of a job, which are too many to be made in another
// thread: a thread looks from time to time whether one of them does not return. Nobody can free the lane then, nor
// the caller whose thread it may be, so the process ends, once it has said why.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trunkline {

class CallWatch {
 public:
  // The calls of one thread at a time.
  class Caller {
   public:
    explicit Caller(std::string subject) : subject_(std::move(subject)) {}

    // While it exists, the thread is in that call.
    class Call {
     public:
      Call(Caller& caller, const char* name) : caller_(caller) {
        caller_.name_.store(name, std::memory_order_relaxed);
        caller_.step();
      }
      ~Call() { caller_.step(); }
      Call(const Call&) = delete;
      Call& operator=(const Call&) = delete;

     private:
      Caller& caller_;
    };

   private:
    friend class CallWatch;
    void step() { steps_.store(steps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }

    const std::string subject_;
    std::atomic<const char*> name_{nullptr};
    std::atomic<uint64_t> steps_{0};  // odd: in a call
    uint64_t seen_ = 0;               // by the watch
    int unchanged_ = 0;               // looks
  };

  // `tell` is given the message before the process ends, and the second that it takes to tell others.
  explicit CallWatch(std::function<void(const std::string&)> tell);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Watched for as long as somebody else has it. `subject`: "rank 0: device rdma_en2".
  std::shared_ptr<Caller> add(std::string subject);

 private:
  void work();
  void look();
  [[noreturn]] void end(const std::string& message);

  std::function<void(const std::string&)> tell_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::vector<std::shared_ptr<Caller>> callers_;
  std::thread thread_;
};

}  // namespace trunkline
