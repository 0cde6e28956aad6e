// Optimizers: SGD and AdamW, one parameter at a time.
#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/checkpoint.h"
#include "train/trained.h"

namespace trunkline {

struct OptimizerOptions {
  enum class Kind { sgd, adamw };
  Kind kind = Kind::adamw;
  double weight_decay = 0.01;  // sgd: added to the gradient; adamw: decoupled. On every parameter
  double momentum = 0.0;       // sgd
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // adamw
  bool bias_correction = true;                        // adamw

  bool operator==(const OptimizerOptions&) const = default;
};

class Optimizer {
 public:
  // The state begins as zeros, of trained tensors alone. `layout` is parallel to the parameters; its names name the
  // state's arrays.
  Optimizer(const OptimizerOptions& options, std::vector<TensorShape> layout, Trained trained,
            bool in_place = mx::default_device() == mx::Device::cpu);

  // From here on trained tensors have f32 masters, which begin as `weights` (f32, parallel to the parameters): these
  // are updated, and parameters become what they are rounded to.
  void keep_masters(const Parameters& weights);
  bool has_masters() const { return !masters_.empty(); }
  // The weights in full: masters where there are any, else the parameters' own.
  Parameters weights(const Parameters& parameters) const;

  // Begins the next step; its number (from 1) enters Adam's bias correction.
  void begin_step(double learning_rate);

  // Replaces `parameter`, or its rows from `row` on that `gradient` covers, by its updated self; the gradient is
  // `gradient` * `scale`. State is f32, and so is the arithmetic. Where MLX computes on the processor this is done on
  // return, in place; elsewhere parameter and state are lazy (but for rows), and stay what they were where `wanted` (a
  // scalar of bool) turns out false.
  void update(size_t index, mx::array& parameter, const mx::array& gradient, float scale = 1.0f, int64_t row = 0,
              const mx::array& wanted = mx::array(true));
  // What update has made lazy of one tensor.
  std::vector<mx::array> made(size_t index, const mx::array& parameter) const;

  // Bytes of state a parameter, masters counted in.
  int64_t state_bytes() const {
    return static_cast<int64_t>((slots_.size() + (masters_.empty() ? 0 : 1)) * sizeof(float));
  }

  // Steps begun so far.
  int64_t steps() const { return steps_; }

  // Arrays by name ("model.norm.weight.m") for a snapshot. After restore, the next step goes on as if nothing had
  // happened. Throws Error(input) naming an array that is missing, unknown or of the wrong shape.
  std::vector<std::pair<std::string, mx::array>> state() const;
  void restore(const std::vector<std::pair<std::string, mx::array>>& state, int64_t steps);

 private:
  void update_in_place(size_t index, mx::array& weights, const mx::array& gradient, float scale, int64_t row);
  void update_in_mlx(size_t index, mx::array& parameter, const mx::array& gradient, float scale, int64_t row,
                     const mx::array& wanted);
  mx::array scalar(double value);
  double correction(double beta) const;

  OptimizerOptions options_;
  bool in_place_;
  std::vector<TensorShape> layout_;
  Trained trained_;
  std::vector<std::string> slots_;             // sgd with momentum: v; adamw: m, v
  std::vector<std::vector<mx::array>> state_;  // [slot][parameter]; nothing where it is not trained
  Parameters masters_;                         // empty, or f32 where trained
  std::map<float, mx::array> scalars_;         // of the step, once each on the device
  int64_t steps_ = 0;
  double rate_ = 0.0;
};

}  // namespace trunkline
