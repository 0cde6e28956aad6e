// Frame: what one posted send carries over a cable. A header of 64 bytes and the payload, together in one slot of a
// registered slab. docs/wire_format.md has the layout.
//
// The header of a data frame names it by what it carries: nothing in it belongs to one peer, cable or attempt. So one
// staged frame is posted to several peers, and again on any cable.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace trunkline {

static_assert(std::endian::native == std::endian::little, "the layout on the wire");

inline constexpr uint8_t kFrameVersion = 1;
inline constexpr size_t kFramePhases = 4;  // streams of one operation in one direction between two ranks

// An operation as frames name it. What the numbers stand for is the caller's affair.
struct FrameOperation {
  uint64_t number = 0;  // counted apart for collectives (pairwise false) and for transfers with one peer (true)
  uint64_t count = 0;   // elements
  uint8_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduction = 0;
  uint8_t algorithm = 0;
  int32_t root = 0;
  uint32_t group = 0;  // of ranks; operations are counted for each
  bool pairwise = false;

  bool operator==(const FrameOperation&) const = default;
};

enum class FrameType : uint8_t { data = 1, credit = 2 };

struct FrameHeader {
  static constexpr uint32_t kMagic = 0x464b5254;  // "TRKF"
  static constexpr uint8_t kBarePayload = 1, kPairwise = 2, kAsks = 4, kSettled = 8;

  uint32_t magic = kMagic;
  uint8_t version = kFrameVersion;
  FrameType type = FrameType::data;
  uint8_t flags = 0;
  uint8_t phase = 0;  // which stream of the operation
  uint32_t generation = 0;
  uint32_t checksum = 0;
  uint64_t number = 0;
  uint64_t count = 0;
  uint8_t kind = 0, dtype = 0, reduction = 0, algorithm = 0;
  int32_t root = 0;
  uint64_t offset = 0;  // in the stream; of a credit message: its number
  uint32_t length = 0;  // of the payload
  uint32_t group = 0;
  uint64_t stream_bytes = 0;  // the whole stream; of a credit message: how many operations its sender has begun

  FrameOperation operation() const;
  void set_operation(const FrameOperation& operation);
};
static_assert(sizeof(FrameHeader) == 64, "the layout on the wire");

inline constexpr size_t kFrameHeaderBytes = sizeof(FrameHeader);

// CRC32C of the header with a checksum of zero: the seed for that of the payload, which then is the frame's checksum.
uint32_t checksum_seed(const FrameHeader& header);

// Writes the header before a payload of header.length bytes that already lies in `slot` behind it. Without `checksum`
// that of a data frame covers the header alone: what steers the protocol is never taken damaged.
void seal_frame(std::span<std::byte> slot, FrameHeader header, bool checksum);
// The same where the payload's checksum is known, because it was computed while the payload was written.
void seal_frame(std::span<std::byte> slot, FrameHeader header, uint32_t checksum);

// What came in a slot.
struct Frame {
  enum class State { good, damaged, other_version };
  State state = State::damaged;
  FrameHeader header;
  std::span<const std::byte> payload;
};

// Takes apart the bytes that a receive has got. `checksum`: payloads of this job have one; a frame that differs in
// that counts as damaged.
Frame read_frame(std::span<const std::byte> bytes, bool checksum);

}  // namespace trunkline
