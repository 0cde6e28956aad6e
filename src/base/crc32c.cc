#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace trunkline {

uint32_t crc32c(const void* data, size_t size, uint32_t seed) {
  // isa-l takes an int length and a non-const pointer that it does not write to, and inverts neither end.
  constexpr size_t kMost = size_t{1} << 30;
  auto* at = const_cast<unsigned char*>(static_cast<const unsigned char*>(data));
  uint32_t crc = ~seed;
  while (size > 0) {
    const size_t part = std::min(size, kMost);
    crc = crc32_iscsi(at, static_cast<int>(part), crc);
    at += part;
    size -= part;
  }
  return ~crc;
}

}  // namespace trunkline
