#include "comm/exchange.h"

#include <fmt/ranges.h>

#include <array>
#include <cstring>

#include "base/clock.h"
#include "base/fail.h"

namespace trunkline {
namespace {

constexpr uint32_t kMostBytes = 1 << 20;

// One direction of a text with its length in front.
struct Outgoing {
  std::string bytes;
  size_t done = 0;
};
struct Incoming {
  uint32_t length = 0;
  std::string text;
  size_t done = 0;  // of length and text

  bool complete() const { return done >= sizeof length && done == sizeof length + text.size(); }
};

// As much as goes without waiting.
void write_some(TcpLink& link, Outgoing& out) {
  while (out.done < out.bytes.size()) {
    const std::array<std::span<const std::byte>, 1> part{std::as_bytes(std::span(out.bytes)).subspan(out.done)};
    const size_t count = link.write(part);
    if (count == 0) return;
    out.done += count;
  }
}

void read_some(TcpLink& link, Incoming& in) {
  while (!in.complete()) {
    const bool head = in.done < sizeof in.length;
    const std::span<std::byte> place =
        head ? std::as_writable_bytes(std::span(&in.length, 1)).subspan(in.done)
             : std::as_writable_bytes(std::span(in.text)).subspan(in.done - sizeof in.length);
    const std::array<std::span<std::byte>, 1> part{place};
    const size_t count = link.read(part);
    if (count == 0) return;
    in.done += count;
    if (!head || in.done < sizeof in.length) continue;
    if (in.length > kMostBytes) fail(ErrorKind::peer, "a text of {} bytes in the set-up of trunks", in.length);
    in.text.resize(in.length);
  }
}

}  // namespace

std::vector<std::string> exchange(const std::vector<std::string>& texts, std::vector<TcpLink>& links, size_t rank,
                                  Watch& watch, std::chrono::milliseconds timeout) {
  std::vector<Outgoing> out(texts.size());
  std::vector<Incoming> in(texts.size());
  for (size_t peer = 0; peer < texts.size(); ++peer) {
    const auto length = static_cast<uint32_t>(texts[peer].size());
    out[peer].bytes.assign(reinterpret_cast<const char*>(&length), sizeof length);
    out[peer].bytes += texts[peer];
  }
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    std::vector<Interest> interests;
    std::vector<std::string> missing;
    for (size_t peer = 0; peer < texts.size(); ++peer) {
      if (peer == rank) continue;
      try {
        write_some(links[peer], out[peer]);
        read_some(links[peer], in[peer]);
      } catch (const Error& error) {
        watch.link_lost(peer, error.what());
      }
      const bool writes = out[peer].done < out[peer].bytes.size(), reads = !in[peer].complete();
      if (writes || reads) interests.push_back({&links[peer], reads, writes});
      if (reads) missing.push_back(watch.who(peer));
    }
    if (interests.empty()) break;
    if (deadline.expired()) {
      fail(ErrorKind::timeout, "the set-up of trunks: nothing from {} for {} ms", fmt::join(missing, ", "),
           timeout.count());
    }
    if (wait_ready(interests, watch.interrupt(), std::min(deadline.left_ms(), 1000)) == Wake::interrupted)
      watch.check();
  }
  std::vector<std::string> result;
  for (Incoming& each : in) result.push_back(std::move(each.text));
  return result;
}

}  // namespace trunkline
