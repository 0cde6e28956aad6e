// The sending side of one link (one queue pair on one cable): which messages are on their way, how many more the peer
// has receives for, how fast it is, and whether it works.
//
// A message is unresolved from its post until the peer is known to have taken it or it counts as lost. Messages arrive
// in order within a link; so once one has been taken, those before it have come too or never will.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "link/credit.h"
#include "link/ring.h"

namespace trunkline {

using FrameTime = std::chrono::nanoseconds;  // since any moment that stays the same

// A message that has been posted.
struct Flight {
  enum class Kind : uint8_t { data, credit, ask };
  Kind kind = Kind::data;
  bool first = true;      // a frame that was not sent before
  bool resolved = false;  // taken or lost
  bool sent = false;      // the link has read it from its slot
  uint8_t phase = 0;      // of data
  uint32_t bytes = 0;
  uint32_t slot = 0;      // of data
  uint64_t sequence = 0;  // of data: the operation
  uint64_t index = 0;     // of data: the frame in its stream
  FrameTime since{0};     // posted or, once it is sent, sent
};

class FrameLink {
 public:
  struct Limits {
    size_t send_depth;     // sends that the link accepts at a time
    size_t receives;       // that this rank has posted on it before the first message comes
    size_t peer_receives;  // that the peer has
    bool spare = false;    // carries nothing unless all others are suspended
  };
  struct Times {
    FrameTime ask_floor;  // a message that is not named for that long, or four usual times, is asked after
    FrameTime longest;    // that the time between questions grows to
    FrameTime dead;       // a link whose messages are not named for that long is suspended,
    FrameTime silence;    // or for that long if the peer is not heard over any link
  };

  FrameLink(const Limits& limits, const Times& times);

  // --- posting

  bool can_post() const { return sends_.end() - sends_.begin() < limits_.send_depth && !flights_.full(); }
  // How many receives of the peer are free for data, all told; not positive: none.
  int64_t room() const { return static_cast<int64_t>(peer_.posted - peer_.taken) - static_cast<int64_t>(data_); }
  size_t unresolved_credits() const { return credits_; }
  const Credit::Link& peer() const { return peer_; }
  bool is_unresolved(uint64_t place) const { return flights_.holds(place) && !flights_[place].resolved; }
  uint64_t next_place() const { return flights_.end(); }
  void post(Flight flight, FrameTime now);
  // The oldest send has completed; sends complete in order.
  Flight completed(FrameTime now);
  // How long until `bytes` more have left. `usual`: seconds a byte, while this link's own speed is not known.
  double seconds_for(size_t bytes, double usual) const {
    return static_cast<double>(queued_bytes_ + bytes) * (seconds_per_byte_ > 0 ? seconds_per_byte_ : usual);
  }
  // Whether so much waits in front of a message that it is better kept back: what comes to be sent meanwhile may be
  // more urgent, answers to the peer among it.
  bool is_deep() const {
    const uint64_t sends = sends_.end() - sends_.begin();
    if (fastest_seconds_per_byte_ == 0) return sends >= kPaceSends;
    return sends >= kShallow && static_cast<double>(queued_bytes_) * fastest_seconds_per_byte_ > kMostQueuedSeconds;
  }
  double seconds_per_byte() const { return seconds_per_byte_; }

  // --- learning what became of it

  // The peer says so of its side of this link. False if it cannot be true.
  bool learn(const Credit::Link& link);
  // The frame that was posted at this place has come.
  void named(uint64_t place, FrameTime now);
  // Forgets what is resolved, once all that a credit message says is known. `peer_sequence`: all frames of earlier
  // operations have come. Calls lost(flight, place) for messages that did not come.
  template <typename Lost>
  void settle(uint64_t peer_sequence, Lost lost);
  // Suspends the link, and gives up what is on it, if it brings nothing across. `heard`: when the peer's last word
  // came, over any link.
  template <typename Lost>
  void expire(FrameTime now, FrameTime heard, Lost lost);
  FrameTime expires_at(FrameTime heard) const;  // the next time to call it; max() if never

  // --- health

  bool suspended() const { return suspended_; }
  bool spare() const { return limits_.spare; }
  // When to ask whether it brings anything across, and where what was posted last has got to: max() if not at all. The
  // answer tells what was lost, since messages arrive in order; so nothing is sent twice that is only late.
  FrameTime ask_at() const;
  void asked(FrameTime now);

 private:
  static constexpr size_t kPaceSends = 8;  // over how many sends speed is measured
  static constexpr uint64_t kShallow = 3;  // messages: fewer never wait
  static constexpr double kMostQueuedSeconds = 2e-3;

  // That a credit message has come is known from one that comes later. If none does, it is forgotten; and so is a
  // question over a link that is suspended.
  bool is_forgettable(const Flight& flight) const {
    return flight.sent && (flight.kind == Flight::Kind::credit || (flight.kind == Flight::Kind::ask && suspended_));
  }
  // The oldest message that is to be asked after: it is unresolved, and has left its slot. Credit messages that ask for
  // nothing are not: only what comes after them tells that they came.
  const Flight* oldest() const;
  // When a link on which a message is still not known to have come counts as dead. `heard`: when the peer's last word
  // came, over any link; a peer that only waits for a core has lost nothing.
  FrameTime dies_at(const Flight& flight, FrameTime heard) const {
    const bool awake = heard >= flight.since + times_.dead / 2;
    return flight.since + std::max(awake ? times_.dead : times_.silence, 4 * usual_);
  }
  FrameTime ask_after() const { return std::max(times_.ask_floor, 4 * usual_); }
  FrameTime stalls_at() const { return progress_ + std::max(8 * ask_after(), times_.dead); }
  bool resolve(Flight& flight);
  void suspend(FrameTime now);
  template <typename Lost>
  void lose_all(Lost lost);

  Limits limits_;
  Times times_;
  Ring<Flight> flights_;         // by place: what may be unresolved
  Ring<uint64_t> sends_;         // places of what the link has not read yet
  Ring<Flight> unread_;          // the same, as flights: they may be resolved, and forgotten, before
  Credit::Link peer_;            // its newest word
  uint64_t resolved_below_ = 0;  // places
  size_t data_ = 0, credits_ = 0;

  FrameTime usual_{0};     // smoothed, from sent to named
  FrameTime progress_{0};  // the last time that a send completed, or the first of several was posted
  bool suspended_ = false;
  FrameTime ask_at_{0}, ask_interval_{0};

  size_t queued_bytes_ = 0;
  double seconds_per_byte_ = 0, fastest_seconds_per_byte_ = 0;
  FrameTime busy_since_{0};
  size_t busy_bytes_ = 0, busy_sends_ = 0;
};

template <typename Lost>
void FrameLink::settle(uint64_t peer_sequence, Lost lost) {
  while (!flights_.empty()) {
    const uint64_t place = flights_.begin();
    Flight& flight = flights_.front();
    if (!flight.resolved) {
      const bool come = flight.kind == Flight::Kind::data && flight.sequence < peer_sequence;
      if (!come && place >= resolved_below_) return;
      if (come && flight.first) resolved_below_ = std::max(resolved_below_, place + 1);
      resolve(flight);
      if (!come) lost(flight, place);
    }
    flights_.pop();
  }
}

template <typename Lost>
void FrameLink::expire(FrameTime now, FrameTime heard, Lost lost) {
  const auto forgotten = [&](const Flight& flight) {
    return is_forgettable(flight) && now >= flight.since + times_.dead;
  };
  while (!flights_.empty() && (flights_.front().resolved || forgotten(flights_.front()))) {
    resolve(flights_.front());
    flights_.pop();
  }
  if (suspended_) return;
  const bool stalled = !sends_.empty() && now >= stalls_at();
  const Flight* const flight = oldest();
  if (!stalled && (flight == nullptr || now < dies_at(*flight, heard))) return;
  lose_all(lost);
  suspend(now);
}

template <typename Lost>
void FrameLink::lose_all(Lost lost) {
  for (; !flights_.empty(); flights_.pop()) {
    if (resolve(flights_.front())) lost(flights_.front(), flights_.begin());
  }
}

}  // namespace trunkline
