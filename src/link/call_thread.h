// Calls that may never return: a wedged RDMA device blocks whoever calls it. They are made in a thread of their own,
// which is left behind if one does not come back in time.
#pragma once

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace trunkline {

// What is said of a call that does not return.
std::string hang_text(const std::string& subject, const char* call);

class CallThread {
 public:
  template <typename Value>
  struct Outcome {
    Value value;
    int error;  // errno afterwards
  };

  // `subject` begins its messages: "rank 0: device rdma_en2".
  CallThread(std::string subject, std::chrono::milliseconds patience);
  // Does not wait for a call that hangs.
  ~CallThread();
  CallThread(const CallThread&) = delete;
  CallThread& operator=(const CallThread&) = delete;

  // Throws Error(system) naming the call if it does not return in time, and from then on for every other. `call` may
  // outlive that, so it owns what it uses, and returns something. Any thread; one call at a time. One that is made from
  // within another is a part of it.
  template <typename Call>
  auto run(const char* name, Call call) {
    using Value = std::invoke_result_t<Call>;
    if (std::this_thread::get_id() == thread_.get_id()) {
      errno = 0;
      Value value = call();
      return Outcome<Value>{std::move(value), errno};
    }
    auto promise = std::make_shared<std::promise<Outcome<Value>>>();
    auto future = promise->get_future();
    const std::lock_guard lock(one_at_a_time_);
    submit(name, [promise, call = std::move(call)]() mutable {
      try {
        std::optional<Call> own(std::move(call));  // what it holds is given up before the caller goes on
        errno = 0;
        Value value = (*own)();
        const int error = errno;
        own.reset();
        promise->set_value({std::move(value), error});
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    if (future.wait_for(patience_) != std::future_status::ready) give_up(name);
    return future.get();
  }

  bool hangs() const { return hangs_in_ != nullptr; }

 private:
  struct Queue;
  static void work(const std::shared_ptr<Queue>& queue);
  void submit(const char* name, std::function<void()> task);
  [[noreturn]] void give_up(const char* name);

  std::string subject_;
  std::chrono::milliseconds patience_;
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
  std::mutex one_at_a_time_;
  std::atomic<const char*> hangs_in_ = nullptr;
};

}  // namespace trunkline
