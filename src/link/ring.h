// A queue of fixed capacity that never allocates after it was made. Entries keep the number that they were pushed
// under.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace trunkline {

template <typename T>
class Ring {
 public:
  explicit Ring(size_t capacity) : entries_(std::bit_ceil(capacity)), mask_(entries_.size() - 1) {}

  bool empty() const { return begin_ == end_; }
  bool full() const { return end_ - begin_ == entries_.size(); }
  uint64_t begin() const { return begin_; }  // the number of the oldest entry
  uint64_t end() const { return end_; }      // the number that the next one will get
  bool holds(uint64_t number) const { return number >= begin_ && number < end_; }

  T& operator[](uint64_t number) { return entries_[number & mask_]; }
  const T& operator[](uint64_t number) const { return entries_[number & mask_]; }
  T& front() { return (*this)[begin_]; }
  const T& front() const { return (*this)[begin_]; }
  void push(const T& entry) { (*this)[end_++] = entry; }  // not when full
  T pop() { return (*this)[begin_++]; }                   // not when empty

 private:
  std::vector<T> entries_;
  uint64_t mask_;
  uint64_t begin_ = 0, end_ = 0;
};

}  // namespace trunkline
