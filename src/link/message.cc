#include "link/message.h"

#include "link/socket.h"

namespace trunkline {
namespace {

constexpr size_t kHeaderBytes = 5;
constexpr size_t kMaxPayloadBytes = 1 << 20;

}  // namespace

void MessageStream::write(Message::Type type, std::string_view payload) {
  if (!fd_) return;
  out_ += Encoder().put(static_cast<uint32_t>(payload.size())).put(type).take();
  out_ += payload;
  flush();
}

void MessageStream::flush() {
  while (!out_.empty()) {
    const auto count = write_some(fd_.get(), std::as_bytes(std::span(out_)));
    if (!count) out_.clear();
    if (!count || *count == 0) return;
    out_.erase(0, *count);
  }
}

bool MessageStream::read() {
  std::byte buffer[4096];
  for (;;) {
    const auto count = read_some(fd_.get(), buffer);
    if (!count) {
      ending_ = errno == 0 ? "closed" : std::strerror(errno);
      return false;
    }
    if (*count == 0) return true;
    in_.append(reinterpret_cast<const char*>(buffer), *count);
  }
}

std::optional<Message> MessageStream::next() {
  if (in_.size() < kHeaderBytes) return std::nullopt;
  Decoder decoder(in_);
  const size_t size = decoder.get<uint32_t>();
  const auto type = decoder.get<Message::Type>();
  if (size > kMaxPayloadBytes || type < Message::Type::welcome || type > Message::Type::farewell) {
    fail(ErrorKind::peer, "bytes on a control connection that are no message");
  }
  if (in_.size() < kHeaderBytes + size) return std::nullopt;
  Message message{type, in_.substr(kHeaderBytes, size)};
  in_.erase(0, kHeaderBytes + size);
  return message;
}

}  // namespace trunkline
