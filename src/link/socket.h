// TCP sockets: addresses, listening, connecting with a deadline. Every socket made here is non-blocking, closes on
// exec, raises no SIGPIPE and sends at once (TCP_NODELAY).
#pragma once

#include <sys/socket.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace trunkline {

// An IPv4 or IPv6 address with its port.
class Address {
 public:
  // "IP:PORT", "[IPV6]:PORT" or "HOST:PORT"; a host name may have several addresses, in the resolver's order. Throws
  // Error(input) naming the text.
  static std::vector<Address> resolve(const std::string& text);
  static Address local_of(int fd);
  static Address peer_of(int fd);

  std::string text() const;  // as resolve() reads it
  bool loopback() const;
  bool wildcard() const;
  int port() const;
  Address with_port(int port) const;
  int family() const { return storage_.ss_family; }
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  bool operator==(const Address& other) const { return text() == other.text(); }

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// How long to wait, and for what to stop waiting: `check` is called every tenth of a second and throws.
struct Patience {
  Deadline deadline;
  std::function<void()> check = [] {};
};

// Listens on this very address. Throws Error(system) naming it.
Fd listen_on(const Address& address);

// The next connection that waits on the listener, or nothing.
Fd accept_on(int listener);

// One attempt. On failure, nothing, and why in `reason`.
Fd connect_to(const Address& address, const Patience& patience, std::string& reason);

// Until `fd` has one of poll(2)'s `events` (or an error); false when the deadline passed first.
bool wait_for(int fd, short events, const Patience& patience);

// Bytes moved without waiting; 0: none can be moved now; none: the connection is at its end, `errno` says why (0:
// closed by the other side).
std::optional<size_t> read_some(int fd, std::span<std::byte> into);
std::optional<size_t> write_some(int fd, std::span<const std::byte> from);

// All of it, or an Error(system) that says why not.
void read_all(int fd, std::span<std::byte> into, const Patience& patience);
void write_all(int fd, std::span<const std::byte> from, const Patience& patience);

// A dead peer's kernel is noticed in some 4 s: probes every second, four times. For control connections alone: on a
// data connection the closed window of a slow reader would count as death.
void watch_liveness(int fd);

std::string host_name();

}  // namespace trunkline
