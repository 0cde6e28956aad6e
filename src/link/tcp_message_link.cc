#include "link/tcp_message_link.h"

#include <bit>
#include <cstring>

#include "base/fail.h"
#include "base/log.h"

namespace trunkline {

static_assert(std::endian::native == std::endian::little);

TcpMessageLink::TcpMessageLink(TcpLink link, std::string name, size_t sends)
    : link_(std::move(link)), name_(std::move(name)), sends_(sends) {}

bool TcpMessageLink::post_send(const std::byte* message, uint32_t bytes, uint64_t id) {
  if (!fault_.empty() || sends_.full()) return false;
  sends_.push({message, bytes, id});
  write();
  return true;
}

void TcpMessageLink::post_receive(std::byte* slot, uint32_t bytes, uint64_t id) {
  receives_.push_back({slot, bytes, id});
}

size_t TcpMessageLink::poll(std::span<MessageCompletion> completions) {
  size_t count = 0;
  write();
  while (count < completions.size() && !sends_.empty() && (sends_.begin() < unwritten_ || !fault_.empty())) {
    const bool good = sends_.begin() < unwritten_;
    completions[count++] = {MessageCompletion::Kind::sent, good, 0, sends_.pop().id};
  }
  while (count < completions.size() && !receives_.empty() && fault_.empty() && read()) {
    const auto bytes = static_cast<uint32_t>(read_ - length_.size());
    completions[count++] = {MessageCompletion::Kind::received, true, bytes, receives_.front().id};
    receives_.pop_front();
    read_ = 0;
  }
  return count;
}

void TcpMessageLink::write() try {
  while (fault_.empty() && unwritten_ < sends_.end()) {
    const Send& send = sends_[unwritten_];
    const std::span length = std::as_bytes(std::span(&send.bytes, 1));
    const std::span message(send.message, send.bytes);
    const size_t total = length.size() + message.size();
    const std::span<const std::byte> parts[] = {
        length.subspan(std::min(written_, length.size())),
        message.subspan(written_ > length.size() ? written_ - length.size() : 0)};
    const size_t moved = link_.write(parts);
    if (moved == 0) return;
    written_ += moved;
    if (written_ < total) continue;
    written_ = 0;
    ++unwritten_;
  }
} catch (const Error& error) {
  give_up(error.what());
}

bool TcpMessageLink::read() try {
  const Receive& receive = receives_.front();
  for (;;) {
    std::span<std::byte> rest;
    if (read_ < length_.size()) {
      rest = std::span(length_).subspan(read_);
    } else {
      uint32_t bytes = 0;
      std::memcpy(&bytes, length_.data(), sizeof bytes);
      if (bytes > receive.bytes) {
        give_up(fmt::format("a message of {} bytes, longer than the {} of its receive", bytes, receive.bytes));
        return false;
      }
      const size_t done = read_ - length_.size();
      if (done == bytes) return true;
      rest = std::span(receive.slot + done, bytes - done);
    }
    const std::span<std::byte> parts[] = {rest};
    const size_t moved = link_.read(parts);
    if (moved == 0) return false;
    read_ += moved;
  }
} catch (const Error& error) {
  give_up(error.what());
  return false;
}

void TcpMessageLink::give_up(const std::string& why) {
  if (!fault_.empty()) return;
  fault_ = fmt::format("{}: {}", name_, why);
  spdlog::warn("{}: it is used no more", fault_);
}

}  // namespace trunkline
