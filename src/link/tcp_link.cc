#include "link/tcp_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

namespace trunkline {
namespace {

constexpr size_t kMaxParts = 16;

#ifdef MSG_NOSIGNAL
constexpr int kNoSignal = MSG_NOSIGNAL;
#else
constexpr int kNoSignal = 0;
#endif

template <typename Byte>
msghdr header_of(std::span<const std::span<Byte>> parts, std::array<iovec, kMaxParts>& vectors) {
  const size_t count = std::min(parts.size(), kMaxParts);
  for (size_t i = 0; i < count; ++i) {
    vectors[i] = {const_cast<std::byte*>(parts[i].data()), parts[i].size()};
  }
  msghdr header{};
  header.msg_iov = vectors.data();
  header.msg_iovlen = static_cast<decltype(header.msg_iovlen)>(count);
  return header;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

}  // namespace

size_t TcpLink::write(std::span<const std::span<const std::byte>> parts) {
  std::array<iovec, kMaxParts> vectors;
  const msghdr header = header_of(parts, vectors);
  const ssize_t count = ::sendmsg(fd_.get(), &header, kNoSignal);
  if (count >= 0) return static_cast<size_t>(count);
  if (would_block()) return 0;
  fail(ErrorKind::peer, "{}", std::strerror(errno));
}

size_t TcpLink::read(std::span<const std::span<std::byte>> parts) {
  std::array<iovec, kMaxParts> vectors;
  msghdr header = header_of(parts, vectors);
  const ssize_t count = ::recvmsg(fd_.get(), &header, 0);
  if (count > 0) return static_cast<size_t>(count);
  if (count == 0) fail(ErrorKind::peer, "closed by the other side");
  if (would_block()) return 0;
  fail(ErrorKind::peer, "{}", std::strerror(errno));
}

Wake wait_ready(std::span<Interest> interests, int interrupt, int timeout_ms) {
  thread_local std::vector<pollfd> items;
  items.clear();
  items.push_back({interrupt, POLLIN, 0});
  for (const Interest& each : interests) {
    const short events = static_cast<short>((each.read ? POLLIN : 0) | (each.write ? POLLOUT : 0));
    items.push_back({events == 0 ? -1 : each.link->fd(), events, 0});
  }
  const int count = ::poll(items.data(), items.size(), timeout_ms);
  if (count < 0 && errno != EINTR) fail_errno("poll");
  for (size_t i = 0; i < interests.size(); ++i) {
    const short ready = count > 0 ? items[i + 1].revents : 0;
    const bool broken = (ready & (POLLERR | POLLHUP | POLLNVAL)) != 0;
    interests[i].read = interests[i].read && ((ready & POLLIN) != 0 || broken);
    interests[i].write = interests[i].write && ((ready & POLLOUT) != 0 || broken);
  }
  if (count > 0 && items[0].revents != 0) return Wake::interrupted;
  return count > 0 ? Wake::ready : Wake::timeout;
}

bool wait_readable(int fd, int timeout_ms) {
  pollfd item{fd, POLLIN, 0};
  return ::poll(&item, 1, timeout_ms) > 0;
}

}  // namespace trunkline
