// Link over TCP: one connection to one rank, as an ordered stream of bytes that never waits.
#pragma once

#include <cstddef>
#include <span>

#include "base/fd.h"

namespace trunkline {

class TcpLink {
 public:
  TcpLink() = default;
  explicit TcpLink(Fd fd) : fd_(std::move(fd)) {}  // a socket as socket.h makes them

  // Bytes moved from or into the parts, in order; 0: none can be moved now. Throws Error(peer) with the reason once the
  // connection is at its end.
  size_t write(std::span<const std::span<const std::byte>> parts);
  size_t read(std::span<const std::span<std::byte>> parts);

  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
};

// What a link is waited for; after the wait, what it is ready for.
struct Interest {
  const TcpLink* link;
  bool read;
  bool write;
};

enum class Wake { ready, interrupted, timeout };

// Sleeps until a link is ready, `interrupt` (a descriptor) can be read, or the time is over.
Wake wait_ready(std::span<Interest> interests, int interrupt, int timeout_ms);

// Sleeps until the descriptor can be read (true) or the time is over.
bool wait_readable(int fd, int timeout_ms);

}  // namespace trunkline
