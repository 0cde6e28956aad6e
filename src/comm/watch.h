// Watch: what a rank knows of the others beside their data: how far they have got, whether they live, why the job ends.
// All lanes share it; any thread may call it.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/channel.h"
#include "comm/operation.h"
#include "link/control.h"

namespace trunkline {

class Watch {
 public:
  Watch(size_t rank, std::vector<Member> members, std::vector<MessageStream> control,
        std::chrono::milliseconds timeout);

  size_t rank() const { return rank_; }
  std::string who(size_t rank) const { return control_.who(rank); }
  const std::vector<Member>& members() const { return control_.members(); }

  // This rank is now in `operation`, or in none. Throws what has ended the job, or Error(peer) if a rank has left.
  void begin(const Operation& operation, const Team& team);
  void end();
  // This rank has got on: a frame, a layer, a block of a checkpoint. Deadlines run from the last such moment.
  void advance() { advances_.fetch_add(1, std::memory_order_relaxed); }
  // Another rank has announced an operation.
  void heard(size_t peer, const Operation& operation);

  // Ends the job for every rank, unless it has ended already.
  void fail_job(const Error& error) { control_.fail_job({error.kind(), error.what()}); }
  void fail_job(const std::exception& error);
  bool failed() const { return control_.has_failed(); }
  // Throws what has ended the job, if anything has.
  void check() const;

  // Leaves the job in good order; to be called before the data connections are closed.
  void leave() { control_.leave(); }

  // One wait of one lane.
  struct Wait {
    std::chrono::nanoseconds waited{0};  // since the last advance of this rank or an awaited one
    uint64_t advances = 0;
  };
  // How long to sleep at a time.
  int slice_ms() const;
  // A peer that is in an operation is heard far more often; from one that says so, silence for that long means that
  // nothing comes across. Less than the timeout, so that it is told before some rank gives up for lack of progress.
  std::chrono::nanoseconds silence() const;
  // A descriptor that can be read once the job has ended.
  int interrupt() const { return control_.failure_fd(); }
  // Nothing has moved for a slice that took `slept`. Throws Error(timeout) once there was no progress for too long: it
  // says of each awaited rank whether it is late or does not answer.
  void still_waiting(Wait& wait, std::chrono::nanoseconds slept, std::span<const size_t> awaited);

  bool has_left(size_t peer) const { return control_.has_left(peer); }
  // That rank has said lately that it is in an operation, whichever: its lanes look after their cables.
  bool is_in_operation(size_t peer);

  // A data connection has ended: throws the reason, for which it waits a little, since a failure is told elsewhere.
  [[noreturn]] void link_lost(size_t peer, const std::string& how);
  // Nothing comes across any more from a rank that lives: throws at once. Who waited here would answer nobody, and be
  // taken for silent too.
  [[noreturn]] void cables_lost(size_t peer, const std::string& how);

 private:
  struct Peer {
    std::optional<Operation> last;  // that it announced
    uint64_t advances = 0;
    std::string status;
    bool in_operation = false;
    std::optional<Clock::time_point> answered;
  };

  std::string status();
  void on_status(size_t peer, const std::string& status);
  std::string last_operation(size_t peer);
  std::string state_of(size_t peer);
  std::string left_text(size_t peer);

  const size_t rank_;
  const std::chrono::nanoseconds timeout_;
  std::atomic<uint64_t> advances_{0};

  std::mutex mutex_;
  std::optional<Operation> current_;
  std::optional<Operation> previous_;
  std::vector<Peer> peers_;

  Control control_;  // last: its thread uses all of the above
};

}  // namespace trunkline
