#include "link/acceptor.h"

#include <poll.h>

#include <vector>

#include "base/log.h"

namespace trunkline {
namespace {

// More unproven connections than this, and the oldest goes.
constexpr size_t kMaxPending = 256;

void turn_away(const Doorkeeper& stranger, std::string_view reason) {
  spdlog::warn("turned away a connection from {}: it {}", stranger.from(), reason);
}

}  // namespace

void Acceptor::admit() {
  while (Fd fd = accept_on(listener_.get())) {
    try {
      pending_.emplace_back(std::move(fd), *key_, static_cast<uint32_t>(rank_));
    } catch (const Error&) {
      continue;  // gone already: it has no address any more
    }
    if (pending_.size() > kMaxPending) {
      turn_away(pending_.front(), "was the oldest of too many that prove nothing");
      pending_.pop_front();
    }
  }
}

std::optional<Proven> Acceptor::next(int timeout_ms) {
  std::vector<pollfd> items{{listener_.get(), POLLIN, 0}};
  for (const Doorkeeper& each : pending_) items.push_back({each.fd(), POLLIN, 0});
  if (::poll(items.data(), items.size(), timeout_ms) < 0 && errno != EINTR) fail_errno("poll");
  admit();

  for (auto each = pending_.begin(); each != pending_.end();) {
    bool proven = false;
    try {
      proven = each->advance();
    } catch (const Error& error) {
      turn_away(*each, error.what());
      each = pending_.erase(each);
      continue;
    }
    if (proven) {
      Proven result{each->take(), each->claim(), each->payload()};
      pending_.erase(each);
      return result;
    }
    if (each->expired()) {
      turn_away(*each, each->lateness());
      each = pending_.erase(each);
    } else {
      ++each;
    }
  }
  return std::nullopt;
}

}  // namespace trunkline
