// How a FrameChannel waits, what it makes of faults, and what it does between operations.
#include <algorithm>
#include <thread>

#include "base/fail.h"
#include "comm/frame_channel.h"

namespace trunkline {
namespace {

constexpr std::chrono::microseconds kShortSleep{20}, kLongSleep{200};
constexpr std::chrono::seconds kStopped{1};

Operation operation_of(const FrameOperation& frame) {
  Operation result;
  result.number = frame.number;
  result.count = frame.count;
  result.kind = static_cast<Operation::Kind>(frame.kind);
  result.dtype = static_cast<Dtype>(frame.dtype);
  result.reduction = static_cast<Reduction>(frame.reduction);
  result.algorithm = static_cast<Algorithm>(frame.algorithm);
  result.root = frame.root;
  result.group = frame.group;
  return result;
}

}  // namespace

std::vector<size_t> FrameChannel::awaited() const {
  std::vector<size_t> ranks;
  for (size_t place = 0; place < peers_.size(); ++place) {
    const Peer& peer = peers_[place];
    if (peer.trunk == nullptr) continue;
    const FrameProtocol& protocol = peer.trunk->protocol();
    if (!protocol.finished() || !protocol.quiet()) ranks.push_back(team_->ranks[place]);
  }
  return ranks;
}

// A brief spin where the cores allow it, then growing sleeps.
void FrameChannel::pause(FrameTime idle) {
  const auto span = stopwatch_.in(Activity::idle);
  if (idle < options_.spin) return;
  std::this_thread::sleep_for(std::clamp<std::chrono::nanoseconds>(idle / 4, kShortSleep, kLongSleep));
}

// No data has moved for a slice of the watch.
void FrameChannel::still_waiting(Watch::Wait& wait, FrameTime waited, FrameTime time) {
  const std::vector<size_t> ranks = awaited();
  watch_.still_waiting(wait, waited, ranks);
  for (const size_t rank : ranks) {
    // Who has left has had all that it needs, and owes nothing to those who have it all.
    if (watch_.has_left(rank) && !trunks_[rank]->protocol().finished()) watch_.cables_lost(rank, "it has left the job");
    if (const std::string* const fault = trunks_[rank]->out_of_use()) watch_.cables_lost(rank, *fault);
    // Cables are silent while a peer is stopped or elsewhere; they are lost only if it looks after them.
    if (!watch_.is_in_operation(rank)) trunks_[rank]->protocol().excuse(time);
  }
}

void FrameChannel::fail_with(size_t rank, const FrameFault& fault) {
  if (fault.own && fault.theirs) {
    const bool first = rank_ < rank;
    const Operation own = operation_of(*fault.own), theirs = operation_of(*fault.theirs);
    fail(ErrorKind::mismatch, "{}",
         disagreement(watch_.who(first ? rank_ : rank), first ? own : theirs, watch_.who(first ? rank : rank_),
                      first ? theirs : own));
  }
  if (fault.kind == ErrorKind::timeout) {
    watch_.cables_lost(rank, fmt::format("all cables are cut: {}, though it is in an operation too", fault.text));
  }
  fail(fault.kind, "{}, in {} with {}: {}", watch_.who(rank_), operation_.text(), watch_.who(rank), fault.text);
}

// Who waits looks far more often than once a second.
void FrameChannel::find_out_if_stopped(FrameTime time) {
  const FrameTime since = time - std::exchange(looked_at_, time);
  if (since < kStopped) return;
  for (const auto& trunk : trunks_) {
    if (trunk != nullptr) trunk->protocol().was_stopped(since, time);
  }
}

// Ranks that take no part in this operation may still wait for answers.
void FrameChannel::look_at_others(FrameTime time) {
  for (const auto& trunk : trunks_) {
    const bool active =
        std::any_of(peers_.begin(), peers_.end(), [&](const Peer& p) { return p.trunk == trunk.get(); });
    if (trunk == nullptr || active) continue;
    trunk->protocol().excuse(time);  // nobody waits for that peer: should it be silent, that is no loss
    trunk->poll(time);
    trunk->post(time);
  }
}

// --- between operations

bool FrameChannel::serve() {
  if (busy_.exchange(true, std::memory_order_acquire)) return true;
  current_ = &unwatched_;  // the lane's thread may be about to begin an operation, with its own running
  const FrameTime time = now();
  find_out_if_stopped(time);
  bool work = false;
  for (const auto& trunk : trunks_) {
    if (trunk == nullptr) continue;
    trunk->protocol().excuse(time);  // nobody waits for that peer: should it be silent, that is no loss
    const bool came = trunk->poll(time);
    const bool went = trunk->post(time);
    work = came || went || !trunk->protocol().quiet() || work;
  }
  current_ = &stopwatch_;
  busy_.store(false, std::memory_order_release);
  return work;
}

// A rank says goodbye once it has had all of its operations: it needs nothing more.
void FrameChannel::drain(const Deadline& deadline) {
  for (size_t rank = 0; rank < trunks_.size(); ++rank) {
    if (trunks_[rank] == nullptr) continue;
    const FrameProtocol& protocol = trunks_[rank]->protocol();
    while (!deadline.expired() && !watch_.failed() && !watch_.has_left(rank)) {
      serve();
      if (!busy_.exchange(true, std::memory_order_acquire)) {
        const bool done = protocol.quiet() || protocol.fault();
        busy_.store(false, std::memory_order_release);
        if (done) break;
      }
      std::this_thread::sleep_for(kLongSleep);
    }
  }
}

void FrameChannel::add_traffic(std::vector<CableTraffic>& cables) const {
  for (size_t rank = 0; rank < trunks_.size(); ++rank) {
    if (trunks_[rank] != nullptr) trunks_[rank]->add_traffic(static_cast<int>(rank), cables);
  }
}

}  // namespace trunkline
