// Small messages on a control connection: a length, a type, a payload.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/fd.h"

namespace trunkline {

// Numbers and strings one after the other, in little-endian order.
static_assert(std::endian::native == std::endian::little);

class Encoder {
 public:
  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) Encoder& put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Encoder& put(std::string_view text) {
    put(static_cast<uint32_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Throws Error(peer) on bytes that end too early.
class Decoder {
 public:
  explicit Decoder(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  requires(std::is_integral_v<T> || std::is_enum_v<T>) T get() {
    T value;
    std::memcpy(&value, part(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() { return std::string(part(get<uint32_t>())); }

 private:
  std::string_view part(size_t size) {
    if (size > bytes_.size()) fail(ErrorKind::peer, "a message of another rank ends too early");
    const std::string_view result = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return result;
  }
  std::string_view bytes_;
};

struct Message {
  // The numbers travel between ranks: never renumber.
  enum class Type : uint8_t {
    welcome = 1,  // rank 0 to all: the table of ranks
    refusal = 2,  // why the job cannot start
    ready = 3,    // to rank 0: connected to every other rank
    start = 4,    // rank 0 to all: every rank is ready
    failure = 5,  // why the job cannot go on
    status = 6,   // how far this rank has got; asks for the same if its first byte is 1
    goodbye = 7,  // this rank has finished, and leaves
    farewell = 8  // the answer to that
  };
  Type type;
  std::string payload;
};

class MessageStream {
 public:
  MessageStream() = default;
  explicit MessageStream(Fd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  void close() { fd_.reset(); }

  // Queues a message and sends as much as can be sent without waiting; flush() goes on. Whether the other side still
  // takes anything is for read() to find out.
  void write(Message::Type type, std::string_view payload);
  void flush();
  bool wants_write() const { return !out_.empty(); }

  // Takes what has come without waiting; false once the other side has closed or the connection is lost.
  bool read();
  const std::string& ending() const { return ending_; }  // why read() said so

  // The next whole message. Throws Error(peer) on bytes that are none.
  std::optional<Message> next();

 private:
  Fd fd_;
  std::string in_, out_, ending_;
};

}  // namespace trunkline
