#include "link/control.h"

#include <poll.h>

#include <algorithm>

namespace trunkline {
namespace {

constexpr std::chrono::seconds kLeavePatience{5};
constexpr std::chrono::seconds kLeavePatienceAfterFailure{1};

std::string encode(const Failure& failure) {
  return Encoder().put(static_cast<uint8_t>(failure.kind)).put(failure.text).take();
}

Failure decode_failure(const std::string& payload) {
  Decoder decoder(payload);
  const auto kind = static_cast<ErrorKind>(decoder.get<uint8_t>());
  return {kind, decoder.text()};
}

constexpr char kAsk = 1;
constexpr char kAnswer = 0;

}  // namespace

Control::Control(size_t rank, std::vector<Member> members, std::vector<MessageStream> streams, Hooks hooks)
    : rank_(rank), members_(std::move(members)), hooks_(std::move(hooks)) {
  set_non_blocking(woken_.read.get());
  set_non_blocking(woken_.write.get());
  for (MessageStream& each : streams) peers_.push_back({.stream = std::move(each)});
  thread_ = std::thread([this] { run(); });
}

Control::~Control() { leave(); }

std::string Control::who(size_t rank) const { return fmt::format("rank {} ({})", rank, members_[rank].host); }

void Control::fail_job(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  record(failure);
}

std::optional<Failure> Control::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool Control::has_left(size_t peer) const {
  if (!somebody_left_.load(std::memory_order_acquire)) return false;
  const std::lock_guard lock(mutex_);
  return peers_[peer].left;
}

void Control::ask_status() {
  const std::string payload = kAsk + hooks_.status();
  const std::lock_guard lock(mutex_);
  send_all(Message::Type::status, payload);
}

void Control::record(const Failure& failure) {
  if (failure_ || leaving_) return;
  failure_ = failure;
  has_failed_.store(true, std::memory_order_release);
  send_all(Message::Type::failure, encode(failure));
  const char byte = 1;
  if (::write(failed_.write.get(), &byte, 1) != 1) fail_errno("write to a pipe");
  changed_.notify_all();
}

void Control::send_all(Message::Type type, std::string_view payload) {
  bool unsent = false;
  for (Peer& each : peers_) {
    if (!each.stream) continue;
    each.stream.write(type, payload);
    unsent = unsent || each.stream.wants_write();
  }
  if (unsent) wake();
}

void Control::wake() {
  const char byte = 1;
  [[maybe_unused]] const ssize_t count = ::write(woken_.write.get(), &byte, 1);  // a full pipe wakes too
}

void Control::run() {
  std::vector<pollfd> items;
  std::vector<size_t> ranks;
  {
    // What came right behind the rendezvous has been read already.
    const std::lock_guard lock(mutex_);
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (peers_[peer].stream) serve(peer);
    }
  }
  for (;;) {
    items.assign(1, {woken_.read.get(), POLLIN, 0});
    ranks.assign(1, rank_);
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      for (size_t peer = 0; peer < peers_.size(); ++peer) {
        const MessageStream& stream = peers_[peer].stream;
        if (!stream) continue;
        items.push_back({stream.fd(), static_cast<short>(POLLIN | (stream.wants_write() ? POLLOUT : 0)), 0});
        ranks.push_back(peer);
      }
    }
    if (::poll(items.data(), items.size(), -1) < 0 && errno != EINTR) fail_errno("poll");
    char drained[64];
    while (::read(woken_.read.get(), drained, sizeof drained) > 0) {
    }
    const std::lock_guard lock(mutex_);
    for (size_t i = 1; i < items.size(); ++i) {
      if (items[i].revents != 0) serve(ranks[i]);
    }
  }
}

void Control::serve(size_t peer) {
  Peer& each = peers_[peer];
  each.stream.flush();
  const bool open = each.stream.read();
  try {
    while (auto message = each.stream.next()) handle(peer, *message);
  } catch (const Error& error) {
    return lost(peer, error.what());
  }
  if (!open) lost(peer, fmt::format("its control connection ended ({})", each.stream.ending()));
}

void Control::handle(size_t peer, const Message& message) {
  Peer& each = peers_[peer];
  switch (message.type) {
    case Message::Type::failure: record(decode_failure(message.payload)); break;
    case Message::Type::status:
      if (message.payload.empty()) fail(ErrorKind::peer, "it sent a message without content");
      if (message.payload[0] == kAsk) each.stream.write(Message::Type::status, kAnswer + hooks_.status());
      hooks_.on_status(peer, message.payload.substr(1));
      break;
    case Message::Type::goodbye:
      each.left = true;
      somebody_left_.store(true, std::memory_order_release);
      each.stream.write(Message::Type::farewell, "");
      changed_.notify_all();
      break;
    case Message::Type::farewell:
      each.answered = true;
      changed_.notify_all();
      break;
    default: fail(ErrorKind::peer, "it sent an unexpected message");
  }
}

// The connection has ended: expected after a goodbye, death otherwise.
void Control::lost(size_t peer, std::string_view how) {
  Peer& each = peers_[peer];
  each.stream.close();
  changed_.notify_all();
  if (each.left) return;
  record(
      {ErrorKind::peer, fmt::format("{} died: {} without a goodbye; {}", who(peer), how, hooks_.last_operation(peer))});
}

void Control::leave() {
  std::unique_lock lock(mutex_);
  if (std::exchange(leaving_, true)) return;
  send_all(Message::Type::goodbye, "");
  changed_.wait_for(lock, failure_ ? kLeavePatienceAfterFailure : kLeavePatience, [this] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& each) { return !each.stream || each.left || each.answered; });
  });
  stop_ = true;
  wake();
  lock.unlock();
  thread_.join();
}

}  // namespace trunkline
