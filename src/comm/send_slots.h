// The slots that one lane stages frames in, in pools of their own for each peer's contributions and for results: so no
// kind of frame can take the room that the progress of another one needs. A slot is free again once every peer that it
// was offered to has its frame.
#pragma once

#include <cstdint>
#include <vector>

namespace trunkline {

class SendSlots {
 public:
  SendSlots(size_t pools, size_t slots_per_pool) : users_(pools * slots_per_pool), per_pool_(slots_per_pool) {
    free_.resize(pools);
    for (size_t slot = users_.size(); slot-- > 0;) free_[slot / per_pool_].push_back(static_cast<uint32_t>(slot));
  }

  size_t count() const { return users_.size(); }
  bool has_free(size_t pool) const { return !free_[pool].empty(); }

  // Takes a free slot for so many peers.
  uint32_t take(size_t pool, size_t users) {
    const uint32_t slot = free_[pool].back();
    free_[pool].pop_back();
    users_[slot] = static_cast<uint32_t>(users);
    return slot;
  }
  // One of its peers needs it no more.
  void release(uint32_t slot) {
    if (--users_[slot] == 0) free_[slot / per_pool_].push_back(slot);
  }

 private:
  std::vector<uint32_t> users_;
  size_t per_pool_;
  std::vector<std::vector<uint32_t>> free_;
};

}  // namespace trunkline
