#include "link/frame.h"

#include <cstring>

#include "base/crc32c.h"

namespace trunkline {
namespace {

uint32_t checksum_of(const FrameHeader& header, const std::byte* payload) {
  const bool header_alone = (header.flags & FrameHeader::kBarePayload) != 0 && header.type == FrameType::data;
  return header_alone ? checksum_seed(header) : crc32c(payload, header.length, checksum_seed(header));
}

}  // namespace

FrameOperation FrameHeader::operation() const {
  return {number, count, kind, dtype, reduction, algorithm, root, group, (flags & kPairwise) != 0};
}

void FrameHeader::set_operation(const FrameOperation& operation) {
  number = operation.number;
  count = operation.count;
  kind = operation.kind;
  dtype = operation.dtype;
  reduction = operation.reduction;
  algorithm = operation.algorithm;
  root = operation.root;
  group = operation.group;
  flags = static_cast<uint8_t>((flags & ~kPairwise) | (operation.pairwise ? kPairwise : 0));
}

uint32_t checksum_seed(const FrameHeader& header) {
  FrameHeader blank = header;
  blank.checksum = 0;
  return crc32c(&blank, sizeof blank);
}

void seal_frame(std::span<std::byte> slot, FrameHeader header, bool checksum) {
  if (!checksum) header.flags |= FrameHeader::kBarePayload;
  seal_frame(slot, header, checksum_of(header, slot.data() + kFrameHeaderBytes));
}

void seal_frame(std::span<std::byte> slot, FrameHeader header, uint32_t checksum) {
  header.checksum = checksum;
  std::memcpy(slot.data(), &header, sizeof header);
}

Frame read_frame(std::span<const std::byte> bytes, bool checksum) {
  Frame frame;
  FrameHeader& header = frame.header;
  if (bytes.size() < kFrameHeaderBytes) return frame;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != FrameHeader::kMagic || header.length > bytes.size() - kFrameHeaderBytes) return frame;
  frame.payload = bytes.subspan(kFrameHeaderBytes, header.length);
  if (checksum != ((header.flags & FrameHeader::kBarePayload) == 0)) return frame;
  if (checksum_of(header, frame.payload.data()) != header.checksum) return frame;
  frame.state = header.version == kFrameVersion ? Frame::State::good : Frame::State::other_version;
  return frame;
}

}  // namespace trunkline
