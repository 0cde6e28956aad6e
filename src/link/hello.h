// Hello: what a rank says of itself when it joins, and whether that fits the job.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fail.h"

namespace trunkline {

// What travels between ranks after the handshake; ranks of different versions refuse each other.
inline constexpr uint32_t kWireVersion = 2;

struct Member {
  std::string host;
  int64_t pid = 0;
  std::string address;  // where it listens during the rendezvous
};

// "rank 2 (hostname, process 4711)"
std::string who(size_t rank, const Member& member);

// What every rank must be told alike; only the layer above knows what it means.
struct SharedSetting {
  std::string name;   // as people set it
  std::string value;  // as they read it
};

struct Hello {
  uint32_t version = kWireVersion;
  int32_t size = 0;
  int32_t lanes = 0;  // 0: whatever rank 0 says
  Member member;
  std::vector<SharedSetting> settings;  // the same ones in the same order on every rank whose earlier ones are equal

  std::string encode() const;
  static Hello decode(std::string_view bytes);
};

// Throws Error(mismatch) naming both sides unless `theirs`, of the rank `from`, fits rank 0's own. `taken`: who says to
// be that rank already, if anybody.
void check_fits(size_t from, const Hello& theirs, const Hello& own, const Member* taken);

}  // namespace trunkline
