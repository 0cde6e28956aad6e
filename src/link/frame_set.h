// Which frames of a stream have come: all before `base`, and some of the next kWindow. Frames are counted from 0.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace trunkline {

class FrameSet {
 public:
  static constexpr uint64_t kWindow = 512;
  using Words = std::array<uint64_t, kWindow / 64>;  // frame i at bit i % kWindow

  FrameSet() = default;
  FrameSet(uint64_t base, const Words& words) : base_(base), words_(words) {}

  uint64_t base() const { return base_; }
  const Words& words() const { return words_; }
  bool gapless() const { return words_ == Words{}; }  // nothing beyond the base
  bool empty() const { return base_ == 0 && gapless(); }

  bool fits(uint64_t frame) const { return frame < base_ + kWindow; }
  bool contains(uint64_t frame) const { return frame < base_ || (fits(frame) && bit(frame)); }

  // False if it was there already. The frame must fit.
  bool insert(uint64_t frame) {
    if (contains(frame)) return false;
    words_[word_of(frame)] |= mask_of(frame);
    while (bit(base_)) {
      words_[word_of(base_)] &= ~mask_of(base_);
      ++base_;
    }
    return true;
  }

 private:
  static size_t word_of(uint64_t frame) { return frame % kWindow / 64; }
  static uint64_t mask_of(uint64_t frame) { return uint64_t{1} << (frame % 64); }
  bool bit(uint64_t frame) const { return (words_[word_of(frame)] & mask_of(frame)) != 0; }

  uint64_t base_ = 0;
  Words words_{};
};

}  // namespace trunkline
