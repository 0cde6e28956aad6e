#include "link/socket.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace trunkline {
namespace {

constexpr std::chrono::milliseconds kCheckEvery{100};

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;  // SO_NOSIGPIPE is set instead
#endif

void set_option(int fd, int level, int option, int value, const char* name) {
  if (::setsockopt(fd, level, option, &value, sizeof value) != 0) fail_errno("setsockopt({})", name);
}

void prepare(int fd) {
  set_close_on_exec(fd);
  set_non_blocking(fd);
#ifdef SO_NOSIGPIPE
  set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1, "SO_NOSIGPIPE");
#endif
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
}

Fd new_socket(int family) {
#ifdef SOCK_CLOEXEC
  Fd fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
#else
  Fd fd(::socket(family, SOCK_STREAM, 0));
#endif
  if (!fd) fail_errno("socket");
  prepare(fd.get());
  return fd;
}

bool would_block(int code) { return code == EAGAIN || code == EWOULDBLOCK || code == EINTR; }

}  // namespace

std::vector<Address> Address::resolve(const std::string& text) {
  const size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (host.empty() || port.empty() || port.find_first_not_of("0123456789") != std::string::npos || port.size() > 5 ||
      std::stoi(port) > 65535 || (!bracketed && host.find(':') != std::string::npos)) {
    fail(ErrorKind::input, "\"{}\" is not an address: write IP:PORT, or [IPV6]:PORT", text);
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); code != 0) {
    fail(ErrorKind::input, "{}: cannot find the address of \"{}\": {}", text, host, ::gai_strerror(code));
  }
  std::vector<Address> addresses;
  for (const addrinfo* item = found; item != nullptr; item = item->ai_next) {
    Address address;
    std::memcpy(&address.storage_, item->ai_addr, item->ai_addrlen);
    address.length_ = item->ai_addrlen;
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return addresses;
}

Address Address::local_of(int fd) {
  Address address;
  address.length_ = sizeof address.storage_;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    fail_errno("getsockname");
  }
  return address;
}

Address Address::peer_of(int fd) {
  Address address;
  address.length_ = sizeof address.storage_;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage_), &address.length_) != 0) {
    fail_errno("getpeername");
  }
  return address;
}

std::string Address::text() const {
  char host[NI_MAXHOST];
  if (::getnameinfo(raw(), length_, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return "an unknown address";
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host, port()) : fmt::format("{}:{}", host, port());
}

bool Address::loopback() const {
  if (family() == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
  }
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

bool Address::wildcard() const {
  if (family() == AF_INET) return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == 0;
  const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&address);
}

int Address::port() const {
  return ntohs(family() == AF_INET ? reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port
                                   : reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port);
}

Address Address::with_port(int port) const {
  Address address = *this;
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address.storage_)->sin_port = value;
  } else {
    reinterpret_cast<sockaddr_in6*>(&address.storage_)->sin6_port = value;
  }
  return address;
}

Fd listen_on(const Address& address) {
  Fd fd = new_socket(address.family());
  set_option(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1, "SO_REUSEADDR");
  if (::bind(fd.get(), address.raw(), address.length()) != 0) {
    if (errno == EADDRINUSE) fail_errno("cannot listen on {}: another job or another rank 0 has it", address.text());
    if (errno == EADDRNOTAVAIL) fail_errno("cannot listen on {}: it is not an address of this machine", address.text());
    fail_errno("cannot listen on {}", address.text());
  }
  if (::listen(fd.get(), 1024) != 0) fail_errno("cannot listen on {}", address.text());
  return fd;
}

Fd accept_on(int listener) {
#ifdef __linux__
  Fd fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
#else
  Fd fd(::accept(listener, nullptr, nullptr));
#endif
  if (fd) prepare(fd.get());
  return fd;
}

bool wait_for(int fd, short events, const Patience& patience) {
  for (;;) {
    patience.check();
    pollfd item{fd, events, 0};
    const int slice = std::min<int>(patience.deadline.left_ms(), kCheckEvery.count());
    const int ready = ::poll(&item, 1, slice);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) fail_errno("poll");
    if (patience.deadline.expired()) return false;
  }
}

Fd connect_to(const Address& address, const Patience& patience, std::string& reason) {
  Fd fd = new_socket(address.family());
  int code = 0;
  if (::connect(fd.get(), address.raw(), address.length()) != 0) {
    code = errno;
    if (code == EINPROGRESS) {
      if (!wait_for(fd.get(), POLLOUT, patience)) {
        reason = "no answer";
        return {};
      }
      socklen_t size = sizeof code;
      if (::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &code, &size) != 0) code = errno;
    }
  }
  // A port of the ephemeral range with nobody listening can be connected to itself.
  if (code == 0 && Address::local_of(fd.get()) == address) code = ECONNREFUSED;
  if (code != 0) {
    reason = fmt::format("{} (errno {})", std::strerror(code), code);
    return {};
  }
  return fd;
}

std::optional<size_t> read_some(int fd, std::span<std::byte> into) {
  const ssize_t count = ::recv(fd, into.data(), into.size(), 0);
  if (count > 0) return static_cast<size_t>(count);
  if (count < 0 && would_block(errno)) return 0;
  if (count == 0) errno = 0;
  return std::nullopt;
}

std::optional<size_t> write_some(int fd, std::span<const std::byte> from) {
  const ssize_t count = ::send(fd, from.data(), from.size(), kNoSignal);
  if (count >= 0) return static_cast<size_t>(count);
  if (would_block(errno)) return 0;
  return std::nullopt;
}

void read_all(int fd, std::span<std::byte> into, const Patience& patience) {
  while (!into.empty()) {
    const auto count = read_some(fd, into);
    if (!count && errno == 0) fail(ErrorKind::system, "the other side closed the connection");
    if (!count) fail_errno("the connection was lost");
    into = into.subspan(*count);
    if (*count == 0 && !wait_for(fd, POLLIN, patience)) fail(ErrorKind::system, "connected, but no answer");
  }
}

void write_all(int fd, std::span<const std::byte> from, const Patience& patience) {
  while (!from.empty()) {
    const auto count = write_some(fd, from);
    if (!count) fail_errno("the connection was lost");
    from = from.subspan(*count);
    if (*count == 0 && !wait_for(fd, POLLOUT, patience)) fail(ErrorKind::system, "connected, but no answer");
  }
}

void watch_liveness(int fd) {
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
#ifdef TCP_KEEPIDLE
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1, "TCP_KEEPIDLE");
#else
  set_option(fd, IPPROTO_TCP, TCP_KEEPALIVE, 1, "TCP_KEEPALIVE");
#endif
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1, "TCP_KEEPINTVL");
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 4, "TCP_KEEPCNT");
#if defined(TCP_USER_TIMEOUT)
  // ms; compared at each probe, so that the fourth one, 4 s after the last sign of life, ends the connection.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 3500, "TCP_USER_TIMEOUT");
#elif defined(TCP_RXT_CONNDROPTIME)
  set_option(fd, IPPROTO_TCP, TCP_RXT_CONNDROPTIME, 4, "TCP_RXT_CONNDROPTIME");  // s
#endif
}

std::string host_name() {
  char name[256] = "";
  if (::gethostname(name, sizeof name - 1) != 0) fail_errno("gethostname");
  return name;
}

}  // namespace trunkline
