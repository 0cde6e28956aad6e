// Control: one connection to every other rank that carries no data. It tells who is alive, why the job cannot go on and
// who leaves. Its thread sleeps until something happens.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "link/rendezvous.h"

namespace trunkline {

// Why the job cannot go on. The first one that a rank has or hears of counts, and is told to all others.
struct Failure {
  ErrorKind kind;
  std::string text;
};

class Control {
 public:
  // Called by the control thread, or by the thread that calls Control; never with a lock that a caller of Control
  // holds.
  struct Hooks {
    std::function<std::string()> status;                                    // what this rank is doing
    std::function<void(size_t peer, const std::string& status)> on_status;  // what another rank is doing
    std::function<std::string(size_t peer)> last_operation;                 // of another rank, as seen from here
  };

  Control(size_t rank, std::vector<Member> members, std::vector<MessageStream> streams, Hooks hooks);
  ~Control();  // leaves
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  const std::vector<Member>& members() const { return members_; }
  std::string who(size_t rank) const;  // "rank 2 (hostname)"

  // Records why the job cannot go on, unless that is known already, and tells the others. Any thread.
  void fail_job(const Failure& failure);
  std::optional<Failure> failure() const;
  bool has_failed() const { return has_failed_.load(std::memory_order_acquire); }  // the same, without a lock
  // A descriptor that can be read from the first failure on.
  int failure_fd() const { return failed_.read.get(); }

  // That rank has said goodbye.
  bool has_left(size_t peer) const;

  // Says goodbye and waits a little for the answers; nothing is told or heard after that.
  void leave();

  // Asks every other rank what it is doing; the answers go to on_status.
  void ask_status();

 private:
  struct Peer {
    MessageStream stream;
    bool left = false;      // has said goodbye
    bool answered = false;  // has answered ours
  };

  void run();
  void serve(size_t peer);  // with the lock held, as those below
  void handle(size_t peer, const Message& message);
  void lost(size_t peer, std::string_view how);
  void record(const Failure& failure);
  void send_all(Message::Type type, std::string_view payload);
  void wake();

  const size_t rank_;
  const std::vector<Member> members_;
  const Hooks hooks_;
  const Pipe woken_ = make_pipe();
  const Pipe failed_ = make_pipe();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Peer> peers_;  // by rank
  std::optional<Failure> failure_;
  std::atomic<bool> has_failed_{false};
  std::atomic<bool> somebody_left_{false};
  bool leaving_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trunkline
