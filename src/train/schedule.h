// Learning rates over steps, as mlx_lm's lr_schedule has them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trunkline {

// `name` and `arguments` are those of the functions in mlx.optimizers.schedulers:
//   constant                                   [rate]
//   linear_schedule, linear                    [start, end, steps]
//   cosine_decay, cosine                       [start, decay_steps, end = 0]
//   exponential_decay                          [start, decay_rate]
//   step_decay                                 [start, decay_rate, step_size]
// With `warmup` steps, the rate first rises linearly from `warmup_init` to the schedule's start, reached at step
// `warmup`; the schedule itself begins at step warmup + 1, counted from 0 there.
struct ScheduleOptions {
  std::string name = "constant";
  std::vector<double> arguments;
  int64_t warmup = 0;
  double warmup_init = 0.0;

  bool operator==(const ScheduleOptions&) const = default;
};

class Schedule {
 public:
  // Throws Error(input) naming the key that is unknown or out of range.
  explicit Schedule(const ScheduleOptions& options);

  // The rate of optimizer step `step`, counted from 0.
  double rate(int64_t step) const;

 private:
  double decayed(int64_t step) const;

  enum class Kind { constant, linear, cosine, exponential, stepwise };
  Kind kind_;
  ScheduleOptions options_;
};

}  // namespace trunkline
