// The frames that this rank gives one peer: what is offered, sent, lost, named. Which link a frame takes is decided
// elsewhere.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "link/frame.h"
#include "link/frame_link.h"
#include "link/frame_set.h"
#include "link/ring.h"

namespace trunkline {

class FrameSender {
 public:
  FrameSender(size_t frame_bytes, size_t slots);

  // The next operation, with the bytes of each of its streams. The one before the last has been received.
  void begin(uint64_t sequence, std::span<const uint64_t, kFramePhases> bytes);

  // Whether the next frame of a stream may be offered now.
  bool has_room(uint8_t phase) const;
  // Gives the next frame of a stream, staged in `slot`. The slot stays as it is until released() names it.
  void offer(uint8_t phase, uint64_t offset, uint32_t length, uint32_t slot);
  // A slot that the peer needs no more and no link has still to read.
  std::optional<uint32_t> released();

  // How many of the peer's receives a frame leaves to others, so that those which everything waits for always find one.
  // Contributions (phase 0) may stay in their slots until all those before have come and can be used; frames of an
  // operation that the peer has not begun stay until it does. All else is put away as it comes.
  enum class Leaves : uint8_t {
    least = 0,  // results, of the later phases
    some = 1,   // a contribution that later ones or the peer's next operation wait for
    most = 2    // other contributions, and what is ahead of the peer
  };

  // Finds a frame to send: calls post(flight, leaves) for one after the other, most urgent first, until it returns a
  // link; the frame then counts as sent there, at that place. False if none was.
  struct Posted {
    uint16_t link;
    uint64_t place;
  };
  template <typename Post>
  bool send(Post post);

  void sent(const Flight& flight);  // a link has read it
  // What was posted there did not come. Whether that frame is to be sent again.
  bool lost(const Flight& flight, uint16_t link, uint64_t place);

  // What the peer says has come of one stream; false if it cannot be true. Calls named(link, place) for each frame on
  // its way that has.
  template <typename Named>
  bool learn(uint64_t sequence, uint8_t phase, const FrameSet& come, Named named);
  // The peer has begun operation `sequence`: it has all of those before. False if it cannot have.
  bool peer_began(uint64_t sequence);

  size_t unnamed() const { return unnamed_; }  // frames offered
  bool all_posted() const;                     // none of them waits for its first turn
  bool settled() const;                        // none of them of an earlier operation
  uint64_t repeats() const { return repeats_; }

 private:
  enum class State : uint8_t { none, offered, flying, lost, come };
  struct OutFrame {
    uint32_t slot;
    uint32_t length;
    uint64_t index;
    uint64_t place;
    uint16_t link;
    State state = State::none;
    bool repeated = false;
    bool queued = false;  // its place is in lost_
  };
  struct Stream {
    uint64_t sequence = 0;
    uint64_t frames = 0;
    uint64_t offered = 0;  // frames
    uint64_t next = 0;     // to be sent for the first time
    FrameSet come;
  };
  struct Slot {
    uint16_t posts = 0;  // that a link has still to read
    bool busy = false;   // the peer has not got it yet
  };
  static constexpr size_t kStreams = 2 * kFramePhases;  // of this operation and the last

  static size_t stream_of(uint64_t sequence, uint8_t phase) { return (sequence % 2) * kFramePhases + phase; }
  Stream* find(uint64_t sequence, uint8_t phase);
  OutFrame& frame(size_t stream, uint64_t index) {
    return frames_[stream * FrameSet::kWindow + index % FrameSet::kWindow];
  }
  Leaves leaves(size_t i, uint64_t index) const;  // of stream i
  void come(size_t i, uint64_t index);
  void release_if_free(uint32_t slot);
  template <typename Post>
  bool try_send(size_t stream, uint64_t index, Post& post);
  template <typename F>
  void for_each_open(F f) const;

  const size_t frame_bytes_;
  uint64_t sequence_ = 0;
  uint64_t peer_sequence_ = 0;  // that the peer is known to have begun
  std::array<Stream, kStreams> streams_;
  uint32_t open_ = 0;  // a bit for each stream of which frames have still to come
  std::vector<OutFrame> frames_;
  Ring<uint32_t> lost_;  // places in frames_
  std::vector<Slot> slots_;
  Ring<uint32_t> released_;
  size_t unnamed_ = 0;
  uint64_t repeats_ = 0;
};

// --- templates

// The older operation first; of one operation the later phases first.
template <typename F>
void FrameSender::for_each_open(F f) const {
  const size_t older = ((sequence_ + 1) % 2) * kFramePhases;
  for (size_t i = 0; i < kStreams && open_ != 0; ++i) {
    const size_t phase = kFramePhases - 1 - i % kFramePhases;
    const size_t stream = (i < kFramePhases ? older : kFramePhases - older) + phase;
    if ((open_ >> stream & 1) != 0 && f(stream)) return;
  }
}

template <typename Post>
bool FrameSender::try_send(size_t stream, uint64_t index, Post& post) {
  OutFrame& each = frame(stream, index);
  const auto phase = static_cast<uint8_t>(stream % kFramePhases);
  Flight flight;
  flight.first = !each.repeated;
  flight.phase = phase;
  flight.bytes = static_cast<uint32_t>(kFrameHeaderBytes) + each.length;
  flight.slot = each.slot;
  flight.sequence = streams_[stream].sequence;
  flight.index = index;
  const std::optional<Posted> posted = post(flight, leaves(stream, index));
  if (!posted) return false;
  if (each.repeated) ++repeats_;
  each.state = State::flying;
  each.link = posted->link;
  each.place = posted->place;
  ++slots_[each.slot].posts;
  return true;
}

template <typename Post>
bool FrameSender::send(Post post) {
  if (open_ == 0) return false;
  bool done = false;
  for_each_open([&](size_t i) {
    Stream& stream = streams_[i];
    const uint64_t oldest = stream.come.base();
    if (oldest < stream.next && frame(i, oldest).state == State::lost) done = try_send(i, oldest, post);
    return done;
  });
  while (!done && !lost_.empty()) {
    OutFrame& each = frames_[lost_.front()];
    if (each.state == State::lost) {
      if (!try_send(lost_.front() / FrameSet::kWindow, each.index, post)) break;
      done = true;
    }
    each.queued = false;
    lost_.pop();
  }
  if (done) return true;
  for_each_open([&](size_t i) {
    Stream& stream = streams_[i];
    if (stream.next < stream.offered && try_send(i, stream.next, post)) {
      ++stream.next;
      done = true;
    }
    return done;
  });
  return done;
}

template <typename Named>
bool FrameSender::learn(uint64_t sequence, uint8_t phase, const FrameSet& come_there, Named named) {
  Stream* stream = find(sequence, phase);
  if (stream == nullptr) return true;  // known already
  const size_t i = stream_of(sequence, phase);
  if (come_there.base() > stream->next) return false;
  const auto name = [&](uint64_t index) {
    OutFrame& each = frame(i, index);
    if (each.state == State::flying) named(each.link, each.place);
    come(i, index);
  };
  for (uint64_t index = stream->come.base(); index < come_there.base(); ++index) {
    if (!stream->come.contains(index)) name(index);
  }
  if (come_there.gapless()) return true;
  for (size_t word = 0; word < come_there.words().size(); ++word) {
    for (uint64_t bits = come_there.words()[word]; bits != 0; bits &= bits - 1) {
      const uint64_t position = word * 64 + static_cast<uint64_t>(std::countr_zero(bits));
      const uint64_t index = come_there.base() +
                             (position + FrameSet::kWindow - come_there.base() % FrameSet::kWindow) % FrameSet::kWindow;
      if (index >= stream->next) return false;
      if (!stream->come.contains(index)) name(index);
    }
  }
  return true;
}

}  // namespace trunkline
