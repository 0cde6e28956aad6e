#include "link/frame_sender.h"

#include <cassert>

namespace trunkline {

FrameSender::FrameSender(size_t frame_bytes, size_t slots)
    : frame_bytes_(frame_bytes),
      frames_(kStreams * FrameSet::kWindow),
      lost_(frames_.size()),
      slots_(slots),
      released_(slots) {}

void FrameSender::begin(uint64_t sequence, std::span<const uint64_t, kFramePhases> bytes) {
  sequence_ = sequence;
  for (uint8_t phase = 0; phase < kFramePhases; ++phase) {
    const size_t i = stream_of(sequence, phase);
    assert((open_ >> i & 1) == 0);
    Stream& stream = streams_[i] = {};
    stream.sequence = sequence;
    stream.frames = (bytes[phase] + frame_bytes_ - 1) / frame_bytes_;
    if (bytes[phase] > 0) open_ |= uint32_t{1} << i;
  }
}

bool FrameSender::has_room(uint8_t phase) const {
  const Stream& stream = streams_[stream_of(sequence_, phase)];
  return stream.offered < stream.frames && stream.come.fits(stream.offered);
}

void FrameSender::offer(uint8_t phase, uint64_t offset, uint32_t length, uint32_t slot) {
  const size_t i = stream_of(sequence_, phase);
  Stream& stream = streams_[i];
  assert(has_room(phase) && offset == stream.offered * frame_bytes_ && !slots_[slot].busy);
  (void)offset;
  OutFrame& each = frame(i, stream.offered);
  each.slot = slot;
  each.length = length;
  each.index = stream.offered;
  each.state = State::offered;
  each.repeated = false;
  slots_[slot].busy = true;
  ++stream.offered;
  ++unnamed_;
}

std::optional<uint32_t> FrameSender::released() {
  if (released_.empty()) return std::nullopt;
  return released_.pop();
}

void FrameSender::sent(const Flight& flight) {
  --slots_[flight.slot].posts;
  release_if_free(flight.slot);
}

bool FrameSender::lost(const Flight& flight, uint16_t link, uint64_t place) {
  if (find(flight.sequence, flight.phase) == nullptr) return false;
  const size_t i = stream_of(flight.sequence, flight.phase);
  OutFrame& each = frame(i, flight.index);
  if (each.state != State::flying || each.index != flight.index || each.link != link || each.place != place) {
    return false;
  }
  each.state = State::lost;
  each.repeated = true;
  if (!each.queued) lost_.push(static_cast<uint32_t>(i * FrameSet::kWindow + flight.index % FrameSet::kWindow));
  each.queued = true;
  return true;
}

bool FrameSender::peer_began(uint64_t sequence) {
  peer_sequence_ = sequence;
  bool possible = true;
  for_each_open([&](size_t i) {
    Stream& stream = streams_[i];
    if (stream.sequence >= sequence) return false;
    possible = possible && stream.next == stream.frames;
    while (possible && stream.come.base() < stream.frames) come(i, stream.come.base());
    return !possible;
  });
  return possible;
}

bool FrameSender::all_posted() const {
  bool all = true;
  for_each_open([&](size_t i) {
    all = all && streams_[i].next == streams_[i].offered;
    return !all;
  });
  return all;
}

bool FrameSender::settled() const {
  const uint32_t earlier = ((uint32_t{1} << kFramePhases) - 1) << (((sequence_ + 1) % 2) * kFramePhases);
  return (open_ & earlier) == 0;
}

// The stream, if frames of it have still to come.
FrameSender::Stream* FrameSender::find(uint64_t sequence, uint8_t phase) {
  const size_t i = stream_of(sequence, phase);
  return (open_ >> i & 1) != 0 && streams_[i].sequence == sequence ? &streams_[i] : nullptr;
}

FrameSender::Leaves FrameSender::leaves(size_t i, uint64_t index) const {
  const Stream& stream = streams_[i];
  if (stream.sequence > peer_sequence_) return Leaves::most;
  if (i % kFramePhases > 0) return Leaves::least;
  const bool awaited = index == stream.come.base() && (!stream.come.gapless() || stream.sequence < sequence_);
  return awaited ? Leaves::some : Leaves::most;
}

void FrameSender::come(size_t i, uint64_t index) {
  Stream& stream = streams_[i];
  OutFrame& each = frame(i, index);
  each.state = State::come;
  slots_[each.slot].busy = false;
  --unnamed_;
  stream.come.insert(index);
  if (stream.come.base() == stream.frames) open_ &= ~(uint32_t{1} << i);
  release_if_free(each.slot);
}

void FrameSender::release_if_free(uint32_t slot) {
  if (slots_[slot].posts == 0 && !slots_[slot].busy) released_.push(slot);
}

}  // namespace trunkline
