// Accepts the connections of this job's ranks on a port that anybody may reach: strangers are turned away with a logged
// warning, several at once and without keeping a rank waiting.
#pragma once

#include <list>
#include <optional>
#include <string>

#include "link/handshake.h"

namespace trunkline {

struct Proven {
  Fd fd;
  Claim claim;
  std::string payload;
};

class Acceptor {
 public:
  // `key` must live as long.
  Acceptor(Fd listener, const JobKey& key, int rank) : listener_(std::move(listener)), key_(&key), rank_(rank) {}

  Address address() const { return Address::local_of(listener_.get()); }

  // The next connection that has proved the key; nothing after at most `timeout_ms`.
  std::optional<Proven> next(int timeout_ms);

 private:
  void admit();

  Fd listener_;
  const JobKey* key_;
  int rank_;
  std::list<Doorkeeper> pending_;
};

}  // namespace trunkline
