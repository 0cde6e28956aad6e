#include "link/slab.h"

#include <sys/mman.h>

#include "base/fail.h"

namespace trunkline {

Slab::Slab(size_t bytes) : size_(bytes) {
  if (bytes == 0) return;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) fail_errno("mmap of {} bytes for messages", bytes);
  memory_ = {static_cast<std::byte*>(memory), Unmap{bytes}};
}

void Slab::Unmap::operator()(std::byte* memory) const { ::munmap(memory, size); }

}  // namespace trunkline
