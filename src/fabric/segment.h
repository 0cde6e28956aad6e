// What the ranks of a job share: one unnamed file, mapped by each. It begins with the wiring as a FILE's text; the
// state that follows is zero at first and valid so, hence nobody has to set it up and nobody has to be waited for. No
// lock lies in it: a process may be killed between any two instructions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "cluster/cables.h"

namespace trunkline {

// Nanoseconds of a clock that all processes of this machine share.
uint64_t now_ns();

// Not if it has ended, though its parent may not have asked for its exit code yet.
bool process_alive(uint32_t pid);

// One direction of a cable.
struct alignas(64) Direction {
  std::atomic<uint64_t> busy_until_ns;  // when it will have taken what was posted so far
  std::atomic<uint64_t> messages;       // posted so far
};

inline constexpr int kMaxQueuePairs = 64;
inline constexpr int kMaxRegions = 4096;

// What is taken of a device, by whom. An owner is a process id, beside a queue pair's number; 0: free.
struct DeviceState {
  std::atomic<uint32_t> queue_pairs_made;
  std::atomic<uint64_t> queue_pairs[kMaxQueuePairs];
  std::atomic<uint32_t> regions[kMaxRegions];
};

// A message on its way: descriptor, and the bytes themselves if they are few.
struct Message {
  static constexpr size_t kShort = 216;

  uint64_t visible_ns;  // when it arrives
  uint64_t damage;      // 0: whole; otherwise the seed of its damage
  uint32_t length;
  uint32_t source;  // queue pair numbers
  uint32_t destination;
  uint32_t immediate;
  uint8_t has_immediate;
  uint8_t receive_error;
  uint16_t first_block;
  uint32_t unused;
  std::byte bytes[kShort];
};
static_assert(sizeof(Message) == 256);

// The messages of one sending queue pair, a ring with one writer and one reader, and the memory of long ones: blocks
// that the writer hands out and takes back once the reader has gone past their message.
struct Channel {
  static constexpr size_t kBlockBytes = 16 << 10;
  static constexpr size_t kBlocks = 2048;

  struct State {
    alignas(64) std::atomic<uint64_t> head;           // messages written
    alignas(64) std::atomic<uint64_t> tail;           // messages read or dropped
    alignas(64) std::atomic<uint32_t> destination;    // the queue pair that may read
    alignas(64) std::atomic<uint16_t> next[kBlocks];  // the block that follows one in its message
  };

  State* state = nullptr;
  Message* ring = nullptr;
  size_t slots = 0;  // a power of two
  std::byte* blocks = nullptr;

  Message& message(uint64_t index) const { return ring[index & (slots - 1)]; }
  std::byte* block(uint16_t index) const { return blocks + index * kBlockBytes; }
};

class Segment {
 public:
  // Throws Error for a descriptor that is no fabric's.
  explicit Segment(int descriptor);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  const Wiring& wiring() const { return wiring_; }
  uint64_t opened_ns() const { return control_->opened_ns.load(std::memory_order_relaxed); }
  // 0 until every rank has brought a queue pair to "ready to send".
  uint64_t connected_ns() const { return control_->connected_ns.load(std::memory_order_relaxed); }
  void connected(int rank);

  DeviceState& device(size_t index) const { return devices_[index]; }
  // Direction 0 of a cable is from its first end to its second.
  Direction& direction(size_t cable, int direction) const {
    return directions_[2 * cable + static_cast<size_t>(direction)];
  }
  // Maps a cable's channels at the first call.
  Channel channel(size_t cable, int direction, int queue_pair);

 private:
  struct Control {
    std::atomic<uint64_t> opened_ns;
    std::atomic<uint64_t> connected_ns;
    std::atomic<uint8_t> connected[1024];
  };

  std::byte* map(size_t offset, size_t bytes);

  Fd file_;
  Wiring wiring_;
  size_t slots_ = 0;
  size_t channel_bytes_ = 0;
  size_t channels_offset_ = 0;
  Control* control_ = nullptr;
  DeviceState* devices_ = nullptr;
  Direction* directions_ = nullptr;
  std::vector<std::byte*> cables_;  // null until mapped
  std::vector<std::span<std::byte>> mappings_;
};

}  // namespace trunkline
