// Credit message: one consistent picture of what a rank has received from its peer, over all links of the trunk. The
// newest one counts; so a lost, repeated or late one does no harm.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "link/frame.h"
#include "link/frame_set.h"

namespace trunkline {

inline constexpr size_t kMaxTrunkLinks = 64;

struct Credit {
  struct Link {
    uint64_t posted = 0;  // receives ever posted
    uint64_t taken = 0;   // messages ever taken out of them
    uint64_t heard = 0;   // one more than the place of the newest credit message taken, among all sent on this link
  };
  struct Stream {
    bool ahead = false;  // of the operation after the sender's: it holds these frames
    uint8_t phase = 0;
    FrameSet come;
  };

  uint64_t number = 0;       // of this message, among all credit messages from this rank to this peer
  uint64_t sequence = 0;     // operations that this rank has begun with this peer: all frames of earlier ones have come
  FrameOperation operation;  // the latest of them
  std::array<uint64_t, kFramePhases> gives{};  // bytes of each stream that its sender gives in it
  bool asks = false;                           // for a credit message in return
  bool settled = false;                        // all frames that its sender gave in earlier operations were named
  uint64_t place = 0;                          // of this message among all sent on the link that it travels on
  size_t link_count = 0, stream_count = 0;
  Link links[kMaxTrunkLinks];
  Stream streams[2 * kFramePhases];
};

// The most bytes that a credit message takes, with its header.
constexpr size_t max_credit_bytes(size_t links) {
  return kFrameHeaderBytes + 16 + 8 * kFramePhases + links * 24 + 2 * kFramePhases * (16 + sizeof(FrameSet::Words));
}

// Writes the message with its header into `slot`; returns its size.
size_t write_credit(std::span<std::byte> slot, const Credit& credit, uint32_t generation, bool checksum);
// Reads a good frame of type credit; false if it is none. Does not touch link_count entries beyond its own.
bool read_credit(const Frame& frame, Credit& credit);

}  // namespace trunkline
