#include "link/frame_protocol.h"

#include <algorithm>
#include <cassert>

#include "base/fail.h"

namespace trunkline {
namespace {

std::vector<size_t> receives_of(const FrameProtocol::Options& options) {
  std::vector<size_t> result;
  for (const FrameLink::Limits& each : options.links) result.push_back(each.receives);
  return result;
}

}  // namespace

FrameProtocol::FrameProtocol(const Options& options)
    : options_(options),
      sender_(options.frame_bytes, options.slots),
      receiver_(options.frame_bytes, options.credit_reserve, receives_of(options)),
      local_(options.links.size()),
      ask_interval_(options.times.ask_floor) {
  if (options.links.empty() || options.links.size() > kMaxTrunkLinks) {
    fail(ErrorKind::unsupported, "a trunk of {} links: from 1 to {} are possible", options.links.size(),
         kMaxTrunkLinks);
  }
  for (const FrameLink::Limits& each : options.links) {
    links_.emplace_back(each, options.times);
    const auto free = static_cast<int64_t>(each.peer_receives) - static_cast<int64_t>(options.credit_reserve);
    if (free < 3) {
      fail(ErrorKind::unsupported, "{} receives a link, of which {} are kept for credit messages: at least 3 more",
           each.peer_receives, options.credit_reserve);
    }
    begun_at_.push_back(0);
    spare_.push_back(std::max<int64_t>(1, free / 8));
  }
}

// --- operations

void FrameProtocol::begin(const FrameOperation& own, const FrameOperation& expected,
                          std::span<const uint64_t, kFramePhases> gives, std::span<const uint64_t, kFramePhases> gets,
                          FrameTime now) {
  if (fault_) return;
  assert(finished());
  ++sequence_;
  own_ = own;
  std::copy(gives.begin(), gives.end(), gives_.begin());
  std::copy(gets.begin(), gets.end(), gets_.begin());
  told_ = std::any_of(gives.begin(), gives.end(), [](uint64_t bytes) { return bytes > 0; });
  for (size_t i = 0; i < links_.size(); ++i) begun_at_[i] = links_[i].next_place();
  heard_at_ = now;
  ask_interval_ = options_.times.ask_floor;
  ask_at_ = now + ask_interval_;
  const std::optional<FrameOperation> ahead = receiver_.ahead();
  if (ahead && *ahead != expected) return set_mismatch(expected, *ahead);
  sender_.begin(sequence_, gives);
  try {
    receiver_.begin(sequence_, expected, gets);
  } catch (const Error& error) {
    return set_fault(error.kind(), error.what());
  }
  if (ahead) peer_began(sequence_);
  check_peer_operation();
  // Frames announce an operation; without any, a credit message does. One is due for held frames that are complete,
  // too.
  const auto none = [](uint64_t bytes) { return bytes == 0; };
  if (std::all_of(gives.begin(), gives.end(), none) || (ahead && receiver_.all_come())) report_now_ = true;
}

void FrameProtocol::check_peer_operation() {
  if (sequence_ == 0 || peer_.sequence != sequence_) return;
  if (peer_.operation != receiver_.expected()) return set_mismatch(receiver_.expected(), peer_.operation);
  if (peer_.gives != gets_) {
    set_fault(ErrorKind::mismatch, fmt::format("it sends streams of {} bytes in operation {}, this rank expects {}",
                                               fmt::join(peer_.gives, ", "), own_.number, fmt::join(gets_, ", ")));
  }
}

void FrameProtocol::peer_began(uint64_t sequence) {
  if (sequence <= peer_began_) return;
  peer_began_ = sequence;
  if (!sender_.peer_began(sequence)) {
    set_fault(ErrorKind::peer,
              "it went on to its next operation before it had all of this one: streams differ in size");
  }
}

// --- what happened

bool FrameProtocol::arrived(size_t link, uint32_t slot, const Frame& frame, FrameTime now) {
  if (fault_) return false;
  receiver_.taken(link);
  if (frame.state == Frame::State::damaged) {
    ++counts_.damaged;
    took_data(link, now);
    return false;
  }
  const FrameHeader& header = frame.header;
  if (frame.state == Frame::State::other_version) {
    set_fault(ErrorKind::mismatch,
              fmt::format("it speaks frame version {}, this rank version {}", header.version, kFrameVersion));
    return false;
  }
  if (header.generation != options_.generation) {
    set_fault(ErrorKind::mismatch, fmt::format("it is in job generation {}, this rank in generation {}",
                                               header.generation, options_.generation));
    return false;
  }
  heard_at_ = now;
  if (header.type == FrameType::data) return take_data(link, slot, header, now);
  take_credit(link, frame, now);
  return false;
}

bool FrameProtocol::take_data(size_t link, uint32_t slot, const FrameHeader& header, FrameTime now) {
  took_data(link, now);
  FrameReceiver::Outcome outcome;
  try {
    outcome = receiver_.take(header, static_cast<uint16_t>(link), slot);
  } catch (const Error& error) {
    set_fault(error.kind(), error.what());
    return false;
  }
  if (outcome == FrameReceiver::Outcome::other) {
    set_mismatch(receiver_.expected(), header.operation());
    return false;
  }
  const bool current = receiver_.is_current(header);
  if (current) peer_began(sequence_);
  if (outcome == FrameReceiver::Outcome::duplicate) {
    ++counts_.duplicates;
    return false;
  }
  if (outcome == FrameReceiver::Outcome::refused) {
    ++counts_.refused;
    return false;
  }
  if (current && receiver_.all_come()) report_now_ = true;
  return true;
}

// A credit message is due after a quarter of a link's receives, or after a short while.
void FrameProtocol::took_data(size_t link, FrameTime now) {
  if (++local_[link].data_taken >= quarter(link)) report_now_ = true;
  report_soon(now);
}

void FrameProtocol::reposted(size_t link, FrameTime now) {
  receiver_.posted(link);
  const int64_t reposted = ++local_[link].reposted;
  if (reposted >= static_cast<int64_t>(quarter(link))) report_now_ = true;
  if (reposted > 0) report_soon(now);
}

void FrameProtocol::report_soon(FrameTime now) {
  if (!report_at_) report_at_ = now + options_.times.ask_floor / 4;
}

void FrameProtocol::take_credit(size_t link, const Frame& frame, FrameTime now) {
  Credit& credit = scratch_;
  if (!read_credit(frame, credit) || credit.link_count != links_.size() || credit.sequence > sequence_ + 1) {
    return set_fault(ErrorKind::peer, "a credit message that makes no sense");
  }
  receiver_.heard(link, credit.place);
  Local& local = local_[link];
  --local.reposted;  // its slot, posted again, is no news
  // Several are answered by one, so that the peer may send more: too few for answers to go on for ever.
  if (++local.credits_taken >= std::max<size_t>(2, options_.credit_reserve / 2) || credit.asks) report_now_ = true;
  if (credit.number <= peer_.number) return;  // overtaken by a newer one on another link
  peer_ = {credit.number, credit.sequence, credit.operation, credit.gives};
  told_at_ = now;
  ask_interval_ = options_.times.ask_floor;
  ask_at_ = now + ask_interval_;

  bool possible = true;
  told_ = told_ || credit.sequence > sequence_;
  for (size_t i = 0; i < links_.size(); ++i) {
    possible = links_[i].learn(credit.links[i]) && possible;
    told_ = told_ || credit.links[i].heard > begun_at_[i];
  }
  peer_began(credit.sequence);
  check_peer_operation();
  for (size_t i = 0; i < credit.stream_count; ++i) {
    const Credit::Stream& each = credit.streams[i];
    possible = sender_.learn(credit.sequence + (each.ahead ? 1 : 0), each.phase, each.come,
                             [&](size_t flown, uint64_t place) { links_[flown].named(place, now); }) &&
               possible;
  }
  if (credit.sequence > sequence_ && credit.settled && !receiver_.complete()) {
    return set_fault(ErrorKind::mismatch,
                     fmt::format("it has gone on after operation {}, of which this rank expects more", own_.number));
  }
  if (!possible) return set_fault(ErrorKind::peer, "a credit message for what was never sent");
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].settle(credit.sequence, [&](const Flight& flight, uint64_t place) { lose(flight, i, place); });
  }
}

bool FrameProtocol::completed(size_t link, FrameTime now) {
  const Flight flight = links_[link].completed(now);
  if (flight.kind == Flight::Kind::data) {
    sender_.sent(flight);
    return false;
  }
  --local_[link].posted_credits;
  return true;
}

void FrameProtocol::advance(FrameTime now) {
  if (fault_) return;
  for (size_t i = 0; i < links_.size(); ++i) {
    links_[i].expire(now, told_at_, [&](const Flight& flight, uint64_t place) { lose(flight, i, place); });
  }
  if (waiting() && now - heard_at_ >= options_.deadline) {
    set_fault(ErrorKind::timeout,
              fmt::format("nothing has come over {} for {:.1f} s",
                          links_.size() == 1 ? "its link" : fmt::format("any of its {} links", links_.size()),
                          std::chrono::duration<double>(now - heard_at_).count()));
  }
}

void FrameProtocol::lose(const Flight& flight, size_t link, uint64_t place) {
  if (flight.kind != Flight::Kind::data) return;
  if (sender_.lost(flight, static_cast<uint16_t>(link), place)) ++counts_.lost;
}

// --- what to do

std::optional<FrameProtocol::Post> FrameProtocol::next_post(FrameTime now) {
  if (fault_) return std::nullopt;
  if (auto post = next_question(now)) return post;
  if (auto post = next_report(now)) return post;
  return next_data(now);
}

std::optional<FrameProtocol::Post> FrameProtocol::next_question(FrameTime now) {
  for (size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].ask_at() > now || !may_post_credit(i)) continue;
    links_[i].asked(now);
    return post_credit(i, true, now);
  }
  return std::nullopt;
}

std::optional<FrameProtocol::Post> FrameProtocol::next_report(FrameTime now) {
  const bool asks = waiting() && ask_at_ <= now;
  if (!asks && !report_now_ && (!report_at_ || *report_at_ > now)) return std::nullopt;
  const std::optional<size_t> link = report_link();
  if (!link) return std::nullopt;
  next_report_link_ = (*link + 1) % links_.size();
  if (asks) {
    ask_at_ = now + ask_interval_;
    ask_interval_ = std::min(2 * ask_interval_, options_.times.longest);
  }
  return post_credit(*link, asks, now);
}

bool FrameProtocol::usable(size_t link) const {
  if (links_[link].suspended()) return false;
  return !links_[link].spare() ||
         std::all_of(links_.begin(), links_.end(), [](const FrameLink& l) { return l.spare() || l.suspended(); });
}

// In turn, so that one link that loses all does not keep the peer in the dark. Suspended links carry questions alone.
std::optional<size_t> FrameProtocol::report_link() const {
  for (size_t i = 0; i < links_.size(); ++i) {
    const size_t link = (next_report_link_ + i) % links_.size();
    if (usable(link) && may_post_credit(link)) return link;
  }
  return std::nullopt;
}

bool FrameProtocol::may_post_credit(size_t link) const {
  const size_t reserve = options_.credit_reserve;
  return links_[link].can_post() && links_[link].unresolved_credits() < reserve &&
         local_[link].posted_credits < reserve;
}

FrameProtocol::Post FrameProtocol::post_credit(size_t link, bool asks, FrameTime now) {
  Post post{};
  post.link = static_cast<uint16_t>(link);
  post.credit = true;
  post.asks = asks;
  post.place = links_[link].next_place();
  Flight flight;
  flight.kind = asks ? Flight::Kind::ask : Flight::Kind::credit;
  flight.bytes = static_cast<uint32_t>(max_credit_bytes(links_.size()));
  links_[link].post(flight, now);
  ++local_[link].posted_credits;
  ++counts_.credits;
  report_now_ = false;
  report_at_.reset();
  for (Local& each : local_) each.data_taken = each.credits_taken = 0, each.reposted = 0;
  return post;
}

size_t FrameProtocol::write_credit(const Post& post, std::span<std::byte> slot) {
  Credit& credit = scratch_;
  credit.number = ++reports_;
  credit.sequence = sequence_;
  credit.operation = own_;
  credit.gives = gives_;
  credit.asks = post.asks;
  credit.place = post.place;
  credit.settled = sender_.settled();
  receiver_.describe(credit);
  return trunkline::write_credit(slot, credit, options_.generation, options_.checksum);
}

std::optional<FrameProtocol::Post> FrameProtocol::next_data(FrameTime now) {
  std::optional<Post> result;
  sender_.send([&](const Flight& flight, FrameSender::Leaves leaves) -> std::optional<FrameSender::Posted> {
    const std::optional<size_t> link = link_for(leaves, flight.bytes);
    if (!link) return std::nullopt;
    const FrameSender::Posted posted{static_cast<uint16_t>(*link), links_[*link].next_place()};
    links_[*link].post(flight, now);
    result = Post{posted.link, false, false, posted.place, flight.slot, flight.bytes};
    return posted;
  });
  return result;
}

// The link that will have moved the frame first, among those with a credit for it and a queue that is neither full nor
// deep; the home link unless another one is sooner by more than two frames.
std::optional<size_t> FrameProtocol::link_for(FrameSender::Leaves leaves, size_t bytes) const {
  const double usual = links_[options_.home].seconds_per_byte();
  std::optional<size_t> best;
  double best_seconds = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    const size_t link = (options_.home + i) % links_.size();
    const FrameLink& each = links_[link];
    const int64_t kept = kept_receives(link, leaves);
    if (!usable(link) || each.room() <= kept || !each.can_post() || each.is_deep()) continue;
    double seconds = each.seconds_for(bytes, usual);
    if (link == options_.home) seconds -= 2 * static_cast<double>(bytes) * usual;
    if (!best || seconds < best_seconds) {
      best = link;
      best_seconds = seconds;
    }
  }
  return best;
}

int64_t FrameProtocol::kept_receives(size_t link, FrameSender::Leaves leaves) const {
  const auto reserve = static_cast<int64_t>(options_.credit_reserve);
  switch (leaves) {
    case FrameSender::Leaves::least: return reserve;
    case FrameSender::Leaves::some: return reserve + 1;
    case FrameSender::Leaves::most: break;
  }
  return reserve + 1 + spare_[link];
}

FrameTime FrameProtocol::wake_at() const {
  FrameTime at = FrameTime::max();
  if (fault_) return at;
  for (size_t i = 0; i < links_.size(); ++i) {
    at = std::min(at, links_[i].expires_at(told_at_));
    if (may_post_credit(i)) at = std::min(at, links_[i].ask_at());
  }
  if (waiting()) at = std::min(at, heard_at_ + options_.deadline);
  if (report_link()) {
    if (waiting()) at = std::min(at, ask_at_);
    if (report_at_) at = std::min(at, *report_at_);
    if (report_now_) at = FrameTime::min();
  }
  return at;
}

// --- faults

void FrameProtocol::set_fault(ErrorKind kind, std::string text) {
  if (!fault_) fault_ = FrameFault{kind, std::move(text), std::nullopt, std::nullopt};
}

void FrameProtocol::set_mismatch(const FrameOperation& expected, const FrameOperation& theirs) {
  if (fault_) return;
  set_fault(ErrorKind::mismatch,
            fmt::format("it is in {} {} of kind {} with {} elements of dtype {}, this rank in one with {} {}, kind {}, "
                        "{} elements, dtype {}",
                        theirs.pairwise ? "transfer" : "operation", theirs.number, theirs.kind, theirs.count,
                        theirs.dtype, expected.pairwise ? "transfer" : "operation", expected.number, expected.kind,
                        expected.count, expected.dtype));
  fault_->own = own_;
  fault_->theirs = theirs;
}

}  // namespace trunkline
