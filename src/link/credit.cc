#include "link/credit.h"

#include <algorithm>
#include <cstring>

namespace trunkline {
namespace {

// The payload: a Prefix, then `links` times Credit::Link, then `streams` times a StreamPrefix with its words.
struct Prefix {
  std::array<uint64_t, kFramePhases> gives;
  uint64_t place;
  uint32_t links;
  uint32_t streams;
};

struct StreamPrefix {
  uint8_t ahead;
  uint8_t phase;
  uint16_t words;  // none: nothing has come beyond the base
  uint32_t reserved;
  uint64_t base;
};

static_assert(sizeof(Prefix) == 48 && sizeof(Credit::Link) == 24 && sizeof(StreamPrefix) == 16);

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <typename T>
  void put(const T& value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }
  std::byte* at() const { return at_; }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  bool get(T& value) {
    if (bytes_.size() < sizeof value) return false;
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_ = bytes_.subspan(sizeof value);
    return true;
  }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

}  // namespace

size_t write_credit(std::span<std::byte> slot, const Credit& credit, uint32_t generation, bool checksum) {
  Writer out(slot.data() + kFrameHeaderBytes);
  out.put(Prefix{credit.gives, credit.place, static_cast<uint32_t>(credit.link_count),
                 static_cast<uint32_t>(credit.stream_count)});
  for (size_t i = 0; i < credit.link_count; ++i) out.put(credit.links[i]);
  for (size_t i = 0; i < credit.stream_count; ++i) {
    const Credit::Stream& stream = credit.streams[i];
    const auto words = static_cast<uint16_t>(stream.come.gapless() ? 0 : stream.come.words().size());
    out.put(StreamPrefix{stream.ahead, stream.phase, words, 0, stream.come.base()});
    if (words > 0) out.put(stream.come.words());
  }
  FrameHeader header;
  header.type = FrameType::credit;
  header.generation = generation;
  header.set_operation(credit.operation);
  if (credit.asks) header.flags |= FrameHeader::kAsks;
  if (credit.settled) header.flags |= FrameHeader::kSettled;
  header.offset = credit.number;
  header.stream_bytes = credit.sequence;
  header.length = static_cast<uint32_t>(out.at() - slot.data() - kFrameHeaderBytes);
  seal_frame(slot, header, checksum);
  return kFrameHeaderBytes + header.length;
}

bool read_credit(const Frame& frame, Credit& credit) {
  const FrameHeader& header = frame.header;
  credit.number = header.offset;
  credit.sequence = header.stream_bytes;
  credit.operation = header.operation();
  credit.asks = (header.flags & FrameHeader::kAsks) != 0;
  credit.settled = (header.flags & FrameHeader::kSettled) != 0;
  Reader in(frame.payload);
  Prefix prefix;
  if (!in.get(prefix) || prefix.links > kMaxTrunkLinks || prefix.streams > std::size(credit.streams)) return false;
  credit.gives = prefix.gives;
  credit.place = prefix.place;
  credit.link_count = prefix.links;
  credit.stream_count = prefix.streams;
  for (size_t i = 0; i < credit.link_count; ++i) {
    if (!in.get(credit.links[i]) || credit.links[i].taken > credit.links[i].posted) return false;
  }
  for (size_t i = 0; i < credit.stream_count; ++i) {
    StreamPrefix stream;
    if (!in.get(stream) || stream.phase >= kFramePhases) return false;
    FrameSet::Words words{};
    if (stream.words != 0 && (stream.words != words.size() || !in.get(words))) return false;
    credit.streams[i] = {stream.ahead != 0, stream.phase, FrameSet(stream.base, words)};
  }
  return in.at_end();
}

}  // namespace trunkline
