#include "link/frame_link.h"

namespace trunkline {

FrameLink::FrameLink(const Limits& limits, const Times& times)
    : limits_(limits),
      times_(times),
      flights_(4 * (limits.send_depth + limits.peer_receives)),
      sends_(limits.send_depth),
      unread_(limits.send_depth),
      ask_interval_(times.ask_floor) {
  peer_.posted = limits.peer_receives;
}

void FrameLink::post(Flight flight, FrameTime now) {
  flight.since = now;
  if (sends_.empty()) {
    progress_ = busy_since_ = now;
    busy_bytes_ = busy_sends_ = 0;
  }
  ++(flight.kind == Flight::Kind::data ? data_ : credits_);
  queued_bytes_ += flight.bytes;
  sends_.push(flights_.end());
  unread_.push(flight);
  flights_.push(flight);
}

Flight FrameLink::completed(FrameTime now) {
  const uint64_t place = sends_.pop();
  const Flight flight = unread_.pop();
  progress_ = now;
  queued_bytes_ -= flight.bytes;
  busy_bytes_ += flight.bytes;
  ++busy_sends_;
  seconds_per_byte_ =
      std::chrono::duration<double>(now - busy_since_).count() / static_cast<double>(std::max<size_t>(busy_bytes_, 1));
  if (busy_sends_ == kPaceSends) {
    // The fastest of late: others share the cable, and this rank is not always quick to look.
    const double slower = 1.02 * fastest_seconds_per_byte_;
    fastest_seconds_per_byte_ = slower > 0 ? std::min(slower, seconds_per_byte_) : seconds_per_byte_;
    busy_since_ = now;
    busy_bytes_ = busy_sends_ = 0;
  }
  if (flights_.holds(place)) {
    flights_[place].sent = true;
    flights_[place].since = now;
  }
  return flight;
}

bool FrameLink::learn(const Credit::Link& link) {
  if (link.heard > flights_.end() || link.posted < peer_.posted || link.taken < peer_.taken) return false;
  if (link.taken > peer_.taken) {
    suspended_ = false;
    ask_interval_ = times_.ask_floor;
  }
  peer_ = link;
  resolved_below_ = std::max(resolved_below_, link.heard);
  return true;
}

void FrameLink::named(uint64_t place, FrameTime now) {
  if (!flights_.holds(place)) return;
  Flight& flight = flights_[place];
  if (!resolve(flight) || !flight.first) return;  // an earlier attempt may be the one that came
  resolved_below_ = std::max(resolved_below_, place + 1);
  if (!flight.sent) return;
  const FrameTime took = now - flight.since;
  usual_ = usual_ == FrameTime(0) ? took : (7 * usual_ + took) / 8;
}

const Flight* FrameLink::oldest() const {
  for (uint64_t place = flights_.begin(); place < flights_.end(); ++place) {
    const Flight& flight = flights_[place];
    if (!flight.sent) return nullptr;
    if (!flight.resolved && flight.kind != Flight::Kind::credit) return &flight;
  }
  return nullptr;
}

FrameTime FrameLink::expires_at(FrameTime heard) const {
  FrameTime at = FrameTime::max();
  if (!flights_.empty() && is_forgettable(flights_.front())) at = flights_.front().since + times_.dead;
  if (suspended_) return at;
  if (const Flight* const flight = oldest()) at = std::min(at, dies_at(*flight, heard));
  return sends_.empty() ? at : std::min(at, stalls_at());
}

FrameTime FrameLink::ask_at() const {
  if (suspended_) return ask_at_;
  const Flight* const flight = oldest();
  return flight != nullptr ? std::max(ask_at_, flight->since + ask_after()) : FrameTime::max();
}

void FrameLink::asked(FrameTime now) {
  ask_at_ = now + ask_interval_;
  ask_interval_ = std::min(2 * ask_interval_, times_.longest);
}

bool FrameLink::resolve(Flight& flight) {
  if (flight.resolved) return false;
  flight.resolved = true;
  --(flight.kind == Flight::Kind::data ? data_ : credits_);
  return true;
}

void FrameLink::suspend(FrameTime now) {
  suspended_ = true;
  ask_at_ = now;
}

}  // namespace trunkline
