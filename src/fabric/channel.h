// The two ends of a channel. At most one queue pair writes to it; the one that the writer names reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "fabric/segment.h"

namespace trunkline {

class ChannelWriter {
 public:
  // Takes over what an earlier writer, perhaps one killed in mid-message, has left: messages not yet read stay.
  ChannelWriter(Channel channel, uint32_t destination);
  // What was sent still arrives once this is gone; the next writer names its own reader.
  ChannelWriter(const ChannelWriter&) = delete;
  ChannelWriter& operator=(const ChannelWriter&) = delete;

  // Copies `parts`, message.length bytes, and lets the reader see them. False, and nothing done, without room.
  bool write(const Message& message, std::span<const std::span<const std::byte>> parts);

  // Messages that nobody has read yet.
  uint64_t unread() const { return head_ - channel_.state->tail.load(std::memory_order_acquire); }

 private:
  void reclaim();

  Channel channel_;
  uint32_t destination_;
  uint64_t head_;
  uint64_t reclaimed_;          // messages whose blocks have come back
  std::vector<uint16_t> free_;  // the last used on top: it may still be in a cache
};

class ChannelReader {
 public:
  ChannelReader(Channel channel, uint32_t source, uint32_t destination)
      : channel_(channel), source_(source), destination_(destination) {}

  // The oldest message for this reader, or null. Drops those that were for others, now gone.
  const Message* front();
  // Copies the front message into `parts`, whose sizes add up to message.length or more.
  void copy(const Message& message, std::span<const std::span<std::byte>> parts) const;
  // False: the channel has another reader now, and what front() gave was not this one's.
  bool pop();

 private:
  Channel channel_;
  uint32_t source_;
  uint32_t destination_;
  uint64_t at_ = 0;  // the index of what front() gave
};

}  // namespace trunkline
