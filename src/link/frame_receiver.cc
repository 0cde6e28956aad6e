#include "link/frame_receiver.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "base/fail.h"

namespace trunkline {

FrameReceiver::FrameReceiver(size_t frame_bytes, size_t reserve, std::span<const size_t> receives)
    : frame_bytes_(frame_bytes),
      reserve_(reserve),
      deliveries_(std::accumulate(receives.begin(), receives.end(), size_t{0})) {
  for (const size_t each : receives) links_.push_back({.posted = each, .taken = 0, .heard = 0});
  held_.reserve(std::accumulate(receives.begin(), receives.end(), size_t{0}));
}

void FrameReceiver::begin(uint64_t sequence, const FrameOperation& expected,
                          std::span<const uint64_t, kFramePhases> bytes) {
  assert(complete());
  sequence_ = sequence;
  expected_ = expected;
  newest_[{expected.group, expected.pairwise}] = expected.number;
  for (size_t phase = 0; phase < kFramePhases; ++phase) {
    streams_[phase] = {bytes[phase], (bytes[phase] + frame_bytes_ - 1) / frame_bytes_, {}};
    missing_ += streams_[phase].frames;
    ahead_[phase] = {};
  }
  ahead_operation_.reset();
  for (const Held& each : held_) deliver(each.header, each.link, each.slot);
  held_.clear();
}

FrameReceiver::Outcome FrameReceiver::take(const FrameHeader& header, uint16_t link, uint32_t slot) {
  if (header.phase >= kFramePhases) fail(ErrorKind::peer, "a frame of phase {}, of which there is none", header.phase);
  const FrameOperation theirs = header.operation();
  const bool same_count = theirs.pairwise == expected_.pairwise && theirs.group == expected_.group;
  if (sequence_ > 0 && same_count && theirs.number == expected_.number) {
    return theirs == expected_ ? accept(header, link, slot) : Outcome::other;
  }
  const auto newest = newest_.find({theirs.group, theirs.pairwise});
  if (newest != newest_.end() && theirs.number <= newest->second) return Outcome::duplicate;
  return hold(header, link, slot);
}

FrameReceiver::Outcome FrameReceiver::accept(const FrameHeader& header, uint16_t link, uint32_t slot) {
  const uint64_t index = check(header);
  const FrameSet& come = streams_[header.phase].come;
  if (come.contains(index)) return Outcome::duplicate;
  // Results are put away at once, so there is always a place for them.
  if (header.phase == 0 && !has_spare(link, index == come.base() ? 1 : 2)) return Outcome::refused;
  deliver(header, link, slot);
  return Outcome::fresh;
}

// The frame's place in its stream of the operation under way.
uint64_t FrameReceiver::check(const FrameHeader& header) const {
  const Stream& stream = streams_[header.phase];
  if (header.stream_bytes != stream.bytes) {
    fail(ErrorKind::mismatch, "it sends {} bytes in phase {} of the operation, where this rank expects {}",
         header.stream_bytes, header.phase, stream.bytes);
  }
  const uint64_t index = index_of(header);
  if (!stream.come.fits(index)) fail(ErrorKind::peer, "a frame at {}, too far ahead of the others", header.offset);
  return index;
}

void FrameReceiver::deliver(const FrameHeader& header, uint16_t link, uint32_t slot) {
  streams_[header.phase].come.insert(check(header));
  --missing_;
  deliveries_.push({header.phase, link, slot, header.length, header.offset});
}

// Whether so many receives are left beside those for credit messages. A sender sees to that, unless it takes frames for
// lost that are late: then they come on top of what it reckons with.
bool FrameReceiver::has_spare(uint16_t link, uint64_t least) const {
  return links_[link].posted - links_[link].taken >= reserve_ + least;
}

// The peer is ahead. By one operation at most, since it had to hear that this rank has begun the last; so what it
// sends is kept, and its slot is not posted again: that closes the window of a peer that goes on.
FrameReceiver::Outcome FrameReceiver::hold(const FrameHeader& header, uint16_t link, uint32_t slot) {
  const FrameOperation theirs = header.operation();
  if (ahead_operation_ && *ahead_operation_ != theirs) {
    fail(ErrorKind::peer, "frames of operations {} and {} while this rank has begun neither", ahead_operation_->number,
         theirs.number);
  }
  const uint64_t index = index_of(header);
  FrameSet& come = ahead_[header.phase];
  if (come.contains(index)) return Outcome::duplicate;
  if (!come.fits(index) || held_.size() == held_.capacity()) {
    fail(ErrorKind::peer, "a frame at {} of an operation to come, more than was asked for", header.offset);
  }
  if (!has_spare(link, 2)) return Outcome::refused;
  ahead_operation_ = theirs;
  come.insert(index);
  held_.push_back({header, link, slot});
  return Outcome::fresh;
}

uint64_t FrameReceiver::index_of(const FrameHeader& header) const {
  const bool whole = header.offset % frame_bytes_ == 0 && header.offset < header.stream_bytes;
  if (!whole || header.length != std::min<uint64_t>(frame_bytes_, header.stream_bytes - header.offset)) {
    fail(ErrorKind::peer, "a frame of {} bytes at {} of {}, where frames have {}: set frame sizes alike", header.length,
         header.offset, header.stream_bytes, frame_bytes_);
  }
  return header.offset / frame_bytes_;
}

std::optional<Delivery> FrameReceiver::next_delivery() {
  if (deliveries_.empty()) return std::nullopt;
  return deliveries_.pop();
}

void FrameReceiver::describe(Credit& credit) const {
  credit.link_count = links_.size();
  std::copy(links_.begin(), links_.end(), credit.links);
  credit.stream_count = 0;
  for (uint8_t phase = 0; phase < kFramePhases; ++phase) {
    const FrameSet& come = streams_[phase].come;
    if (!come.empty()) credit.streams[credit.stream_count++] = {false, phase, come};
    if (!ahead_[phase].empty()) credit.streams[credit.stream_count++] = {true, phase, ahead_[phase]};
  }
}

}  // namespace trunkline
