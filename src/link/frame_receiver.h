// The frames that one peer gives this rank: which have come, of this operation and ahead of it, and what each link has
// taken.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "link/credit.h"
#include "link/frame.h"
#include "link/frame_set.h"
#include "link/ring.h"

namespace trunkline {

// A frame for the layer above. Its payload lies in the slot, behind the header, until that layer posts the slot again.
struct Delivery {
  uint8_t phase;
  uint16_t link;
  uint32_t slot;
  uint32_t length;
  uint64_t offset;
};

class FrameReceiver {
 public:
  // `receives`: how many this rank has posted on each link, of which `reserve` are kept for credit messages.
  FrameReceiver(size_t frame_bytes, size_t reserve, std::span<const size_t> receives);

  // The next operation: how the peer names it, and the bytes of each stream that it gives. All of the last has come.
  // Frames of it that came ahead are delivered. Throws Error(peer) on one that does not belong to it.
  void begin(uint64_t sequence, const FrameOperation& expected, std::span<const uint64_t, kFramePhases> bytes);

  // What is expected of the peer, and what it is doing if it does something else.
  const FrameOperation& expected() const { return expected_; }
  const std::optional<FrameOperation>& ahead() const { return ahead_operation_; }

  enum class Outcome {
    fresh,      // kept: delivered, or held for the next operation
    duplicate,  // has come before
    refused,    // would leave too few receives for what is more urgent: its sender took an earlier one for lost
    other       // of the expected number, but another operation
  };
  // Takes a good data frame. Throws Error(peer) or Error(mismatch) on one that cannot belong where it says.
  Outcome take(const FrameHeader& header, uint16_t link, uint32_t slot);
  // Whether a frame is of the operation under way: its sender has begun that one.
  bool is_current(const FrameHeader& header) const { return sequence_ > 0 && header.operation() == expected_; }

  std::optional<Delivery> next_delivery();
  // All frames of the operation have come and been handed out: those that came ahead of it wait at its beginning.
  bool all_come() const { return missing_ == 0; }
  bool complete() const { return missing_ == 0 && deliveries_.empty(); }

  // Counters for credit messages.
  void taken(size_t link) { ++links_[link].taken; }
  void posted(size_t link) { ++links_[link].posted; }
  void heard(size_t link, uint64_t place) { links_[link].heard = place + 1; }
  void describe(Credit& credit) const;

 private:
  struct Stream {
    uint64_t bytes = 0;
    uint64_t frames = 0;
    FrameSet come;
  };
  struct Held {
    FrameHeader header;
    uint16_t link;
    uint32_t slot;
  };

  Outcome accept(const FrameHeader& header, uint16_t link, uint32_t slot);
  Outcome hold(const FrameHeader& header, uint16_t link, uint32_t slot);
  uint64_t check(const FrameHeader& header) const;
  void deliver(const FrameHeader& header, uint16_t link, uint32_t slot);
  bool has_spare(uint16_t link, uint64_t least) const;
  uint64_t index_of(const FrameHeader& header) const;

  const size_t frame_bytes_;
  const size_t reserve_;
  uint64_t sequence_ = 0;
  FrameOperation expected_;
  std::map<std::pair<uint32_t, bool>, uint64_t> newest_;  // by group and whether pairwise: number of the last begun
  std::array<Stream, kFramePhases> streams_;
  uint64_t missing_ = 0;  // frames
  std::optional<FrameOperation> ahead_operation_;
  std::array<FrameSet, kFramePhases> ahead_;
  std::vector<Held> held_;  // never more than there are receives
  Ring<Delivery> deliveries_;
  std::vector<Credit::Link> links_;
};

}  // namespace trunkline
