// FrameProtocol: what passes between one lane of this rank and the same lane of one peer, over K links that may lose,
// damage and delay, each in order, none in step with another. It makes of them streams that arrive whole, or one error.
//
// It does no I/O and reads no clock. Its driver
//   - tells it what happened: arrived(), completed(), reposted(), and then the time: advance(now);
//   - does what it asks for: next_post() until there is none, next_delivery(), released();
//   - calls again when something happens, or at wake_at().
// What came must be told before the time, or frames count as lost whose names are waiting to be read.
//
// An operation is begun on both sides in the same order. It gives the peer up to kFramePhases streams and gets as many.
// It has finished once all that it gets has come and the peer is known to have begun it too; what it gave may still be
// on its way when the next begins. So nobody is ahead of a peer by more than one operation.
//
// docs/wire_format.md explains the rules.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "link/credit.h"
#include "link/frame.h"
#include "link/frame_link.h"
#include "link/frame_receiver.h"
#include "link/frame_sender.h"
#include "trunkline/error.h"

namespace trunkline {

// Why the two cannot go on. `own` and `theirs`: set if they are in different operations.
struct FrameFault {
  ErrorKind kind;
  std::string text;
  std::optional<FrameOperation> own, theirs;
};

class FrameProtocol {
 public:
  struct Options {
    uint32_t generation = 0;    // of the job
    size_t frame_bytes = 0;     // payload of every frame but the last of a stream; the peer's are the same
    bool checksum = true;       // the same on both sides
    size_t slots = 0;           // that frames are staged in are numbered below this
    size_t home = 0;            // the link that is preferred
    size_t credit_reserve = 8;  // receives of each link that are kept for credit messages
    FrameLink::Times times{.ask_floor = std::chrono::milliseconds(2),
                           .longest = std::chrono::milliseconds(100),
                           .dead = std::chrono::milliseconds(400),
                           .silence = std::chrono::seconds(1)};
    FrameTime deadline = std::chrono::seconds(60);  // nothing heard for that long while something is awaited: an error
    std::vector<FrameLink::Limits> links;           // in an order that both sides share; at most kMaxTrunkLinks
  };

  explicit FrameProtocol(const Options& options);

  // --- operations

  // Begins the next operation; the last has finished. `own`: as this rank's frames name it; `expected`: as the peer's
  // must. `gives` and `gets`: bytes of each stream.
  void begin(const FrameOperation& own, const FrameOperation& expected, std::span<const uint64_t, kFramePhases> gives,
             std::span<const uint64_t, kFramePhases> gets, FrameTime now);
  bool finished() const { return receiver_.complete() && peer_has_begun(); }
  bool peer_has_begun() const { return peer_began_ >= sequence_; }

  bool has_room(uint8_t phase) const { return sender_.has_room(phase); }
  // The next frame of a stream lies in `slot`, sealed. It stays as it is until released() names the slot. Only if
  // has_room().
  void offer(uint8_t phase, uint64_t offset, uint32_t length, uint32_t slot) {
    sender_.offer(phase, offset, length, slot);
  }
  std::optional<uint32_t> released() { return sender_.released(); }
  std::optional<Delivery> next_delivery() { return receiver_.next_delivery(); }

  // All that this rank has given is known to have come, and the peer to know of its last operation: it needs nothing
  // more. At the end of a job each rank goes on until it is.
  bool quiet() const { return sender_.unnamed() == 0 && told_; }
  // All that was given is on its way.
  bool all_posted() const { return sender_.all_posted(); }
  // Does at once what could wait for a while, because nobody will call for some time.
  void flush() { report_now_ = report_now_ || report_at_.has_value(); }

  // --- what happened

  // A message came in a slot of a link. False: nothing in it is needed, post the slot again and say so by reposted().
  // True: the slot belongs to a frame that next_delivery() gives out, now or when its operation begins.
  bool arrived(size_t link, uint32_t slot, const Frame& frame, FrameTime now);
  // A slot was posted to receive again.
  void reposted(size_t link, FrameTime now);
  // The oldest send of a link has completed. Whether it was a credit message.
  bool completed(size_t link, FrameTime now);
  // Time has passed: what has waited too long counts as lost.
  void advance(FrameTime now);
  // The peer is known to be busy elsewhere: the deadline runs from now.
  void excuse(FrameTime now) { heard_at_ = now; }
  // This rank was itself stopped for so long, and has not waited meanwhile.
  void was_stopped(FrameTime duration, FrameTime now) { heard_at_ = std::min(now, heard_at_ + duration); }

  // --- what to do

  struct Post {
    uint16_t link;
    bool credit;     // write_credit() fills its slot, which is the driver's: a link has credit_reserve of them in use
    bool asks;       // of a credit message
    uint64_t place;  // of a credit message
    uint32_t slot;   // of a frame
    uint32_t bytes;  // of a frame, with its header
  };
  // A message to post now, on a link that has room for it. It counts as posted.
  std::optional<Post> next_post(FrameTime now);
  // Writes a credit message into its slot of max_credit_bytes(links); returns its size.
  size_t write_credit(const Post& post, std::span<std::byte> slot);
  // When to call advance() and next_post() if nothing happens before; max(): never.
  FrameTime wake_at() const;

  // The first thing that went wrong; nothing more is done after it.
  const std::optional<FrameFault>& fault() const { return fault_; }

  struct Counts {
    uint64_t damaged = 0, duplicates = 0, refused = 0, lost = 0, credits = 0;
  };
  const Counts& counts() const { return counts_; }
  uint64_t repeats() const { return sender_.repeats(); }
  const FrameLink& link(size_t i) const { return links_[i]; }
  FrameTime told_at() const { return told_at_; }  // its newest credit message came: its last word of its own state

 private:
  struct Local {  // what has happened on a link since the last credit message
    size_t data_taken = 0, credits_taken = 0;
    int64_t reposted = 0;       // slots of data
    size_t posted_credits = 0;  // that the link has not read yet, whenever they were posted
  };
  struct Peer {  // its newest credit message
    uint64_t number = 0;
    uint64_t sequence = 0;
    FrameOperation operation;
    std::array<uint64_t, kFramePhases> gives{};
  };

  bool take_data(size_t link, uint32_t slot, const FrameHeader& header, FrameTime now);
  void took_data(size_t link, FrameTime now);
  void take_credit(size_t link, const Frame& frame, FrameTime now);
  void check_peer_operation();
  void peer_began(uint64_t sequence);
  void report_soon(FrameTime now);
  size_t quarter(size_t link) const { return std::max<size_t>(2, options_.links[link].receives / 4); }
  void lose(const Flight& flight, size_t link, uint64_t place);

  bool usable(size_t link) const;
  bool waiting() const { return !finished() || !quiet(); }
  std::optional<Post> next_question(FrameTime now);
  std::optional<Post> next_report(FrameTime now);
  std::optional<Post> next_data(FrameTime now);
  std::optional<size_t> report_link() const;
  std::optional<size_t> link_for(FrameSender::Leaves leaves, size_t bytes) const;
  int64_t kept_receives(size_t link, FrameSender::Leaves leaves) const;
  bool may_post_credit(size_t link) const;
  Post post_credit(size_t link, bool asks, FrameTime now);

  void set_fault(ErrorKind kind, std::string text);
  void set_mismatch(const FrameOperation& expected, const FrameOperation& theirs);

  const Options options_;
  FrameSender sender_;
  FrameReceiver receiver_;
  std::vector<FrameLink> links_;
  std::vector<Local> local_;
  std::vector<int64_t> spare_;  // receives of the peer, by link, that less urgent frames leave to more urgent ones

  uint64_t sequence_ = 0;  // operations begun
  FrameOperation own_;
  std::array<uint64_t, kFramePhases> gives_{}, gets_{};
  bool told_ = true;                // the peer knows that it was begun, or will know once it has all frames of it
  std::vector<uint64_t> begun_at_;  // of the first message on each link that tells so
  uint64_t peer_began_ = 0;         // operations that the peer is known to have begun
  Peer peer_;

  bool report_now_ = false;             // a credit message is due
  std::optional<FrameTime> report_at_;  // or will be
  uint64_t reports_ = 0;
  size_t next_report_link_ = 0;
  FrameTime ask_at_{0}, ask_interval_;  // of what is awaited
  FrameTime heard_at_{0};
  FrameTime told_at_{0};  // its newest credit message came

  Credit scratch_;
  Counts counts_;
  std::optional<FrameFault> fault_;
};

}  // namespace trunkline
