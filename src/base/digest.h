// Digest: a name for bytes. BLAKE2b-256 by libsodium: different bytes do not get the same one, not even on purpose.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trunkline {

using Digest = std::array<uint8_t, 32>;

Digest digest_of(std::string_view bytes);
std::string to_hex(const Digest& digest);

}  // namespace trunkline
