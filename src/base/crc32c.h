// CRC32C (Castagnoli, RFC 3720 appendix B.4).
#pragma once

#include <cstddef>
#include <cstdint>

namespace trunkline {

// The checksum of `size` bytes; pass an earlier result as `seed` to go on with more bytes.
uint32_t crc32c(const void* data, size_t size, uint32_t seed = 0);

}  // namespace trunkline
