// Which of a model's tensors are trained; the others are as they came, and take no memory but their own.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace trunkline {

class Trained {
 public:
  // Parallel to the decoder's layout.
  explicit Trained(std::vector<bool> mask) : mask_(std::move(mask)) {
    for (size_t i = 0; i < mask_.size(); ++i) {
      if (mask_[i]) tensors_.push_back(i);
    }
  }
  static Trained all(size_t tensors) { return Trained(std::vector<bool>(tensors, true)); }

  bool operator[](size_t tensor) const { return mask_[tensor]; }
  // Positions in the layout, ascending.
  const std::vector<size_t>& tensors() const { return tensors_; }
  // Of things parallel to the layout, those of trained tensors.
  template <typename T>
  std::vector<T> of(const std::vector<T>& all) const {
    std::vector<T> found;
    for (const size_t i : tensors_) found.push_back(all[i]);
    return found;
  }

 private:
  std::vector<bool> mask_;
  std::vector<size_t> tensors_;
};

}  // namespace trunkline
