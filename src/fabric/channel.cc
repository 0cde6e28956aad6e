#include "fabric/channel.h"

#include <algorithm>
#include <cstring>

namespace trunkline {
namespace {

size_t blocks_of(uint32_t length) {
  return length <= Message::kShort ? 0 : (length + Channel::kBlockBytes - 1) / Channel::kBlockBytes;
}

// Calls each(block, offset in the message, bytes) for the blocks of a long message.
template <typename Each>
void for_each_block(const Channel& channel, const Message& message, Each each) {
  uint16_t block = message.first_block;
  for (size_t done = 0; done < message.length; done += Channel::kBlockBytes) {
    each(block, done, std::min<size_t>(Channel::kBlockBytes, message.length - done));
    block = channel.state->next[block % Channel::kBlocks].load(std::memory_order_relaxed) % Channel::kBlocks;
  }
}

// Walks through parts, as many bytes at a time as the caller asks for.
template <typename Byte>
class Parts {
 public:
  explicit Parts(std::span<const std::span<Byte>> parts) : parts_(parts) {}

  // Calls each(pointer, bytes) for the pieces of the next `size` bytes.
  template <typename Each>
  void next(size_t size, Each each) {
    while (size > 0) {
      const std::span<Byte> part = parts_.front();
      const size_t piece = std::min(size, part.size() - used_);
      each(part.data() + used_, piece);
      used_ += piece;
      size -= piece;
      if (used_ == part.size()) {
        parts_ = parts_.subspan(1);
        used_ = 0;
      }
    }
  }

 private:
  std::span<const std::span<Byte>> parts_;
  size_t used_ = 0;
};

}  // namespace

ChannelWriter::ChannelWriter(Channel channel, uint32_t destination)
    : channel_(channel),
      destination_(destination),
      head_(channel.state->head.load(std::memory_order_acquire)),
      reclaimed_(channel.state->tail.load(std::memory_order_acquire)) {
  std::vector<bool> used(Channel::kBlocks);
  for (uint64_t i = reclaimed_; i != head_; ++i) {
    const Message& message = channel_.message(i);
    if (blocks_of(message.length) == 0) continue;
    for_each_block(channel_, message, [&](uint16_t block, size_t, size_t) { used[block] = true; });
  }
  for (size_t block = Channel::kBlocks; block-- > 0;) {
    if (!used[block]) free_.push_back(static_cast<uint16_t>(block));
  }
  channel_.state->destination.store(destination, std::memory_order_release);
}

void ChannelWriter::reclaim() {
  const uint64_t tail = channel_.state->tail.load(std::memory_order_acquire);
  for (; reclaimed_ != tail; ++reclaimed_) {
    const Message& message = channel_.message(reclaimed_);
    if (blocks_of(message.length) == 0) continue;
    for_each_block(channel_, message, [&](uint16_t block, size_t, size_t) { free_.push_back(block); });
  }
}

bool ChannelWriter::write(const Message& message, std::span<const std::span<const std::byte>> parts) {
  const size_t blocks = blocks_of(message.length);
  // Looking at the reader's count costs a cache miss, so not every time; but blocks soon come back, still in a cache.
  if (head_ - reclaimed_ > 8 || blocks > free_.size()) reclaim();
  if (head_ - reclaimed_ == channel_.slots || blocks > free_.size()) return false;
  Message& out = channel_.message(head_);
  std::memcpy(static_cast<void*>(&out), &message, offsetof(Message, bytes));
  Parts<const std::byte> input(parts);
  if (blocks == 0) {
    std::byte* to = out.bytes;
    input.next(message.length, [&](const std::byte* from, size_t size) {
      std::memcpy(to, from, size);
      to += size;
    });
  } else {
    out.first_block = free_.back();
    for (size_t i = 0; i < blocks; ++i) {
      const uint16_t block = free_.back();
      free_.pop_back();
      if (i + 1 < blocks) channel_.state->next[block].store(free_.back(), std::memory_order_relaxed);
    }
    for_each_block(channel_, out, [&](uint16_t block, size_t, size_t bytes) {
      std::byte* to = channel_.block(block);
      input.next(bytes, [&](const std::byte* from, size_t size) {
        std::memcpy(to, from, size);
        to += size;
      });
    });
  }
  channel_.state->head.store(++head_, std::memory_order_release);
  return true;
}

const Message* ChannelReader::front() {
  Channel::State& state = *channel_.state;
  if (state.destination.load(std::memory_order_acquire) != destination_) return nullptr;
  for (;;) {
    at_ = state.tail.load(std::memory_order_acquire);
    if (at_ == state.head.load(std::memory_order_acquire)) return nullptr;
    const Message& message = channel_.message(at_);
    if (message.destination == destination_ && message.source == source_) return &message;
    pop();
  }
}

void ChannelReader::copy(const Message& message, std::span<const std::span<std::byte>> parts) const {
  Parts<std::byte> output(parts);
  const auto copy_from = [&](const std::byte* from, size_t size) {
    output.next(size, [&](std::byte* to, size_t piece) {
      std::memcpy(to, from, piece);
      from += piece;
    });
  };
  if (message.length <= Message::kShort) {
    copy_from(message.bytes, message.length);
  } else {
    for_each_block(channel_, message,
                   [&](uint16_t block, size_t, size_t bytes) { copy_from(channel_.block(block), bytes); });
  }
}

bool ChannelReader::pop() {
  return channel_.state->tail.compare_exchange_strong(at_, at_ + 1, std::memory_order_acq_rel);
}

}  // namespace trunkline
