// What becomes of a step's summed gradients: each is checked, and then used at once or held until all have been
// checked.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "model/decoder.h"
#include "train/optimizer.h"
#include "train/pieces.h"
#include "train/shards.h"
#include "train/timeline.h"

namespace trunkline {

struct UpdateOptions {
  double learning_rate = 0.0;
  double max_grad_norm = 0.0;  // 0: no clipping
  bool hold = false;           // until all have been checked; clipping needs it
  // Whether to update nothing, for the norm of the mean's gradient; none: never. Needs `hold`.
  std::function<bool(double)> refuses = nullptr;
  Group* group = nullptr;  // whose ranks all make this update; null: this process alone
  // Not null: parameters are the parts of `shards` that this rank updates, and the ranks of `group` agree at the end.
  const Shards* shards = nullptr;
};

class Update {
 public:
  // Of step `number`, whose loss is a mean over `targets`; gradients are of the sum.
  Update(const Decoder& decoder, Parameters& parameters, Optimizer& optimizer, Timeline& timeline, int64_t number,
         int64_t targets, const UpdateOptions& options);

  // A piece's gradients, summed over the ranks. After one that is not finite nothing more is updated. On a GPU the work
  // is queued on return.
  void take(const Piece& piece, std::vector<mx::array> gradients);

  // Once all pieces have been taken: updates what was held. Returns the norm of the mean's gradient, before clipping.
  // Throws Error(numeric) naming the first tensor that was not finite, and whether anything was updated before.
  double finish();
  // Whether finish left the update out.
  bool refused() const { return refused_; }

 private:
  void agree();
  void fail_not_finite() const;
  size_t tensor_of(size_t index) const;
  void check(const Piece& piece, const std::vector<mx::array>& gradients);
  void count(size_t index, double squares);
  void apply(const Piece& piece, std::vector<mx::array>& gradients, double factor);
  void read_squares();

  const Decoder& decoder_;
  Parameters& parameters_;
  Optimizer& optimizer_;
  Timeline& timeline_;
  const int64_t number_;
  const double targets_;
  const UpdateOptions options_;
  double squares_ = 0.0;
  bool updated_ = false, refused_ = false;
  std::vector<size_t> bad_;  // tensors
  // On a GPU nothing is awaited before the step's end: what was not read yet of tensors' squares, and whether all so
  // far were finite.
  const bool lazy_ = mx::default_device() != mx::Device::cpu;
  struct Unread {
    std::vector<TensorRows> rows;
    mx::array squares;  // of each
    bool updated_before;
  };
  std::vector<Unread> unread_;
  mx::array finite_{true};
  std::vector<std::pair<Piece, std::vector<mx::array>>> held_;
};

}  // namespace trunkline
