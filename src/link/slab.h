// Slab: one large piece of page-aligned memory, registered once with every device that reads or writes it. Devices take
// only some 100 registrations, and a message lies in one piece.
#pragma once

#include <cstddef>
#include <memory>

namespace trunkline {

class Slab {
 public:
  Slab() = default;
  explicit Slab(size_t bytes);  // zeroed; throws Error(system)

  std::byte* data() const { return memory_.get(); }
  size_t size() const { return size_; }

 private:
  struct Unmap {
    size_t size;
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Unmap> memory_{nullptr, Unmap{0}};
  size_t size_ = 0;
};

}  // namespace trunkline
