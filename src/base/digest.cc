#include "base/digest.h"

#include <fmt/format.h>
#include <sodium.h>

namespace trunkline {

Digest digest_of(std::string_view bytes) {
  Digest result{};
  crypto_generichash(result.data(), result.size(), reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
                     nullptr, 0);
  return result;
}

std::string to_hex(const Digest& digest) {
  std::string result;
  for (const uint8_t byte : digest) result += fmt::format("{:02x}", byte);
  return result;
}

}  // namespace trunkline
