// Copies of frames: into slots with their checksum computed while the bytes are in cache, and out of them past the
// cache where the message is larger than it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace trunkline {

// How the bytes of a result are written: to be read again soon, or past the cache. Streamed stores pay off only for
// messages that no cache holds; those to smaller ones lose.
enum class Stores { cached, streamed };
inline constexpr size_t kStreamedFrom = 8 << 20;  // bytes of a message
constexpr Stores stores_for(size_t message_bytes) {
  return message_bytes >= kStreamedFrom ? Stores::streamed : Stores::cached;
}

void copy_bytes(std::byte* to, const std::byte* from, size_t bytes, Stores stores);

// Copies, and returns the CRC32C of the bytes after `seed`.
uint32_t copy_with_checksum(std::byte* to, const std::byte* from, size_t bytes, uint32_t seed);

}  // namespace trunkline
