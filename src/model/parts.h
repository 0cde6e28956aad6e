// Arrays handled in parts along one axis, so that what is made on the way never exists for all of it at once.
#pragma once

#include <mlx/mlx.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "model/backend.h"
#include "model/fused.h"

namespace trunkline {

namespace mx = mlx::core;

// A size as MLX takes them; one that is larger stands for all.
inline int narrow(int64_t size) { return static_cast<int>(std::min<int64_t>(size, 1 << 30)); }

struct Part {
  int begin, end;
};

// [0, total) in parts of `block` >= 1, the last maybe shorter.
inline std::vector<Part> parts_of(int total, int block) {
  std::vector<Part> parts;
  for (int begin = 0; begin < total; begin += std::min(block, total - begin)) {
    parts.push_back({begin, begin + std::min(block, total - begin)});
  }
  return parts;
}

// x[..., begin:end, ...] along `axis`; x itself where that is all of it.
inline mx::array part(const mx::array& x, int axis, int begin, int end) {
  if (begin == 0 && end == x.shape(axis)) return x;
  mx::Shape from(x.ndim(), 0), to = x.shape();
  from[static_cast<size_t>(axis)] = begin;
  to[static_cast<size_t>(axis)] = end;
  return mx::slice(x, from, to);
}

// Evaluates block after block, and keeps the device busy: while one is computed the next one is described, and on a GPU
// queued, up to blocks_to_queue().
class Pacer {
 public:
  // `after_block` is called when a block has been queued; those queued before it may not be computed yet.
  explicit Pacer(std::function<void()> after_block = {})
      : after_block_(std::move(after_block)), depth_(static_cast<size_t>(blocks_to_queue())) {}

  void queue(std::vector<mx::array> arrays) {
    // What is evaluated together ends together. The array that is waited for holds none of the others, so that the next
    // block is written into their memory.
    mx::array done = mx::add(mx::array(0.0f), mx::array(0.0f));
    arrays.push_back(done);
    if (queued_.size() >= depth_) {
      queued_.front().wait();
      queued_.pop_front();
    }
    mx::async_eval(std::move(arrays));
    queued_.push_back(std::move(done));
    if (after_block_) after_block_();
  }

 private:
  std::function<void()> after_block_;
  size_t depth_;
  std::deque<mx::array> queued_;
};

// An array that is made part by part, in place from the second part on.
class Assembly {
 public:
  Assembly(mx::Shape shape, mx::Dtype dtype, int axis) : shape_(std::move(shape)), dtype_(dtype), axis_(axis) {}

  // Parts do not overlap and cover everything in the end; value() is evaluated or queued before the next part.
  void put(int begin, int end, const mx::array& x) {
    if (begin == 0 && end == shape_[static_cast<size_t>(axis_)]) {
      value_ = x;
      return;
    }
    if (!value_) value_ = mx::zeros(shape_, dtype_);
    mx::Shape from(shape_.size(), 0), to = shape_;
    from[static_cast<size_t>(axis_)] = begin;
    to[static_cast<size_t>(axis_)] = end;
    // Moved, so that nothing else holds it and MLX writes into its memory.
    value_ = mx::slice_update(std::exchange(*value_, mx::array(0.0f)), x, from, to);
  }
  const mx::array& value() const { return *value_; }
  mx::array take() { return *std::exchange(value_, std::nullopt); }

 private:
  mx::Shape shape_;
  mx::Dtype dtype_;
  int axis_;
  std::optional<mx::array> value_;
};

// A sum in f32 of arrays that cover parts of it; a single one that covers all stays as it is.
class Accumulation {
 public:
  explicit Accumulation(mx::Shape shape, int axis = 0) : shape_(std::move(shape)), axis_(axis) {}

  // value() is evaluated or queued before the next.
  void add(int begin, int end, const mx::array& x) {
    const bool whole = begin == 0 && end == shape_[static_cast<size_t>(axis_)];
    if (!value_ && whole) {
      value_ = x;
      return;
    }
    mx::array sum =
        value_ ? mx::astype(*std::exchange(value_, std::nullopt), mx::float32) : mx::zeros(shape_, mx::float32);
    mx::Shape from(shape_.size(), 0), to = shape_;
    from[static_cast<size_t>(axis_)] = begin;
    to[static_cast<size_t>(axis_)] = end;
    value_ = whole ? add_in_f32(std::exchange(sum, mx::array(0.0f)), x)
                   : mx::slice_update_add(std::exchange(sum, mx::array(0.0f)), mx::astype(x, mx::float32), from, to);
  }
  void add(const mx::array& x) { add(0, shape_[static_cast<size_t>(axis_)], x); }
  const mx::array& value() const { return *value_; }
  mx::array take() { return *std::exchange(value_, std::nullopt); }
  mx::array take(mx::Dtype dtype) { return mx::astype(take(), dtype); }

 private:
  mx::Shape shape_;
  int axis_;
  std::optional<mx::array> value_;
};

}  // namespace trunkline
