#include "fabric/segment.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <string_view>

#include "base/clock.h"
#include "base/fail.h"

namespace trunkline {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStateOffset = size_t{1} << 20;  // the text before it may be as long

constexpr size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string read_text(int file) {
  std::string text(kStateOffset, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::pread(file, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("TRUNKLINE_FABRIC_FD: cannot read descriptor {}", file);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  text.resize(std::min(size, text.find('\0')));
  if (text.size() == kStateOffset) fail(ErrorKind::input, "TRUNKLINE_FABRIC_FD: the wiring is longer than 1 MiB");
  return text;
}

}  // namespace

uint64_t now_ns() { return static_cast<uint64_t>(std::chrono::nanoseconds(Clock::now().time_since_epoch()).count()); }

bool process_alive(uint32_t pid) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0) return errno == EPERM;
  const Fd file(::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC));
  char text[256];  // "PID (NAME) STATE ..."
  const ssize_t size = file ? ::read(file.get(), text, sizeof text) : -1;
  if (size <= 0) return errno != ENOENT && errno != ESRCH;
  const std::string_view stat(text, static_cast<size_t>(size));
  const size_t name_end = stat.rfind(')');
  return name_end == stat.npos || name_end + 2 >= stat.size() ||
         (stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X');
}

Segment::Segment(int descriptor) : file_(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3)) {
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) fail_errno("TRUNKLINE_FABRIC_FD: descriptor {}", descriptor);
  if (!S_ISREG(status.st_mode)) fail(ErrorKind::input, "TRUNKLINE_FABRIC_FD: descriptor {} is not a file", descriptor);
  wiring_ = wiring_from_json(read_text(file_.get()), "the fabric's wiring");

  slots_ = std::bit_ceil(static_cast<size_t>(std::max(64, 4 * wiring_.limits.work_requests)));
  channel_bytes_ = pages(sizeof(Channel::State)) + slots_ * sizeof(Message) + Channel::kBlocks * Channel::kBlockBytes;
  const size_t device_bytes = wiring_.devices.size() * sizeof(DeviceState);
  const size_t direction_bytes = 2 * wiring_.cables.size() * sizeof(Direction);
  const size_t control_bytes = pages(pages(sizeof(Control)) + direction_bytes + device_bytes);
  channels_offset_ = kStateOffset + control_bytes;
  const size_t cable_bytes = 2 * static_cast<size_t>(wiring_.limits.queue_pairs) * channel_bytes_;
  const size_t size = channels_offset_ + wiring_.cables.size() * cable_bytes;
  // Every rank does this, to the same size. The file is sparse: only what is written takes memory.
  if (static_cast<size_t>(status.st_size) < size && ::ftruncate(file_.get(), static_cast<off_t>(size)) != 0) {
    fail_errno("TRUNKLINE_FABRIC_FD: cannot grow the file to {} bytes", size);
  }
  std::byte* state = map(kStateOffset, control_bytes);
  control_ = reinterpret_cast<Control*>(state);
  directions_ = reinterpret_cast<Direction*>(state + pages(sizeof(Control)));
  devices_ = reinterpret_cast<DeviceState*>(state + pages(sizeof(Control)) + direction_bytes);
  cables_.resize(wiring_.cables.size());
  uint64_t never = 0;
  control_->opened_ns.compare_exchange_strong(never, now_ns());
}

Segment::~Segment() {
  for (const std::span<std::byte> mapping : mappings_) ::munmap(mapping.data(), mapping.size());
}

std::byte* Segment::map(size_t offset, size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) fail_errno("cannot map {} bytes of the fabric", bytes);
  mappings_.emplace_back(static_cast<std::byte*>(mapped), bytes);
  return mappings_.back().data();
}

void Segment::connected(int rank) {
  control_->connected[rank].store(1);
  for (int other = 0; other < wiring_.ranks; ++other) {
    if (control_->connected[other].load() == 0) return;
  }
  uint64_t never = 0;
  control_->connected_ns.compare_exchange_strong(never, now_ns());
}

Channel Segment::channel(size_t cable, int direction, int queue_pair) {
  const size_t queue_pairs = static_cast<size_t>(wiring_.limits.queue_pairs);
  const size_t cable_bytes = 2 * queue_pairs * channel_bytes_;
  if (cables_[cable] == nullptr) cables_[cable] = map(channels_offset_ + cable * cable_bytes, cable_bytes);
  std::byte* at = cables_[cable] +
                  (static_cast<size_t>(direction) * queue_pairs + static_cast<size_t>(queue_pair)) * channel_bytes_;
  Channel channel;
  channel.state = reinterpret_cast<Channel::State*>(at);
  channel.ring = reinterpret_cast<Message*>(at + pages(sizeof(Channel::State)));
  channel.slots = slots_;
  channel.blocks = at + pages(sizeof(Channel::State)) + slots_ * sizeof(Message);
  return channel;
}

}  // namespace trunkline
