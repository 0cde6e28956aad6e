// Calls: the calls of a rank, one after the other: on the caller's thread, or on one of their own, made when it is
// first needed, for those that nobody waits for.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "trunkline/group.h"

namespace trunkline {

struct Work::State {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::exception_ptr error;
};

class Calls {
 public:
  using Call = std::function<void()>;

  // `failed` is told, on their thread, of errors that nobody may ever ask for.
  explicit Calls(std::function<void(const std::exception&)> failed) : failed_(std::move(failed)) {}
  ~Calls() { finish(); }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  // Makes the call, after those that were started.
  void run(const Call& call);
  Work start(Call call);
  // Waits for those that were started. None may be started after it.
  void finish();

 private:
  struct Started {
    Call call;
    std::shared_ptr<Work::State> state;
  };

  void serve();

  const std::function<void(const std::exception&)> failed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Started> started_;  // the first of them is under way
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trunkline
