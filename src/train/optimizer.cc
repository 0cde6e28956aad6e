#include "train/optimizer.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/fail.h"
#include "base/vector_math.h"
#include "bridge/arrays.h"
#include "model/fused.h"
#include "model/parts.h"

namespace trunkline {
namespace {

mx::Shape dims_of(const TensorShape& shape) { return {shape.dims.begin(), shape.dims.end()}; }

// Puts `rows` (evaluated) into `array` from row `begin` on: in its own memory where nothing else holds that.
void replace_rows(mx::array& array, int begin, const mx::array& rows) {
  if (rows.shape() == array.shape()) {
    array = rows;
    return;
  }
  mx::Shape from(array.ndim(), 0), to = array.shape();
  from.front() = begin;
  to.front() = begin + rows.shape(0);
  array = mx::slice_update(std::exchange(array, mx::array(0.0f)), rows, from, to);
  array.eval();
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<TensorShape> layout, Trained trained, bool in_place)
    : options_(options), in_place_(in_place), layout_(std::move(layout)), trained_(std::move(trained)) {
  if (options_.kind == OptimizerOptions::Kind::adamw) {
    slots_ = {"m", "v"};
  } else if (options_.momentum != 0.0) {
    slots_ = {"v"};
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& arrays = state_.emplace_back(layout_.size(), mx::array(0.0f));
    for (const size_t i : trained_.tensors()) arrays[i] = mx::zeros(dims_of(layout_[i]), mx::float32);
  }
}

void Optimizer::keep_masters(const Parameters& weights) {
  masters_.assign(layout_.size(), mx::array(0.0f));
  for (const size_t i : trained_.tensors()) masters_[i] = weights[i];
}

Parameters Optimizer::weights(const Parameters& parameters) const {
  Parameters all = parameters;
  for (size_t i = 0; i < masters_.size(); ++i) {
    if (trained_[i]) all[i] = masters_[i];
  }
  return all;
}

void Optimizer::begin_step(double learning_rate) {
  ++steps_;
  rate_ = learning_rate;
  scalars_.clear();
}

void Optimizer::update(size_t index, mx::array& parameter, const mx::array& gradient, float scale, int64_t row,
                       const mx::array& wanted) {
  if (!in_place_) return update_in_mlx(index, parameter, gradient, scale, row, wanted);
  if (masters_.empty() && parameter.dtype() == mx::float32) {
    return update_in_place(index, parameter, gradient, scale, row);
  }
  const int begin = static_cast<int>(row), end = begin + gradient.shape(0);
  mx::array weights = masters_.empty() ? mx::astype(parameter, mx::float32) : std::move(masters_[index]);
  update_in_place(index, weights, gradient, scale, row);
  mx::array rounded = mx::astype(part(weights, 0, begin, end), parameter.dtype());
  rounded.eval();
  replace_rows(parameter, begin, rounded);
  if (!masters_.empty()) masters_[index] = std::move(weights);
}

std::vector<mx::array> Optimizer::made(size_t index, const mx::array& parameter) const {
  std::vector<mx::array> arrays = {parameter};
  for (const auto& slot : state_) arrays.push_back(slot[index]);
  if (!masters_.empty()) arrays.push_back(masters_[index]);
  return arrays;
}

// 1 - beta^steps: what zeros at the start have taken from a running mean.
double Optimizer::correction(double beta) const {
  return options_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(steps_)) : 1.0;
}

// One pass over memory; MLX's operations on the processor would be a dozen, each with a temporary.
void Optimizer::update_in_place(size_t index, mx::array& weights, const mx::array& gradient, float scale, int64_t row) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const auto first = static_cast<size_t>(row) * (weights.size() / static_cast<size_t>(weights.shape(0)));
  const auto writable = [&](mx::array& array) {
    array = own(std::exchange(array, mx::array(0.0f)));
    return array.data<float>() + first;
  };
  const mx::array ordered = in_row_order(mx::astype(gradient, mx::float32));
  const float* g = ordered.data<float>();
  float* w = writable(weights);
  const size_t size = gradient.size();
  if (options_.kind == OptimizerOptions::Kind::sgd) {
    const float rate = f(rate_), decay = f(options_.weight_decay), momentum = f(options_.momentum);
    if (momentum == 0.0f) {
      for (size_t i = 0; i < size; ++i) w[i] -= rate * (g[i] * scale + decay * w[i]);
    } else {
      float* v = writable(state_[0][index]);
      for (size_t i = 0; i < size; ++i) {
        v[i] = momentum * v[i] + (g[i] * scale + decay * w[i]);
        w[i] -= rate * v[i];
      }
    }
    return;
  }
  float* m = writable(state_[0][index]);
  float* v = writable(state_[1][index]);
  adamw_step(w, m, v, g, size,
             {.scale = scale,
              .beta1 = f(options_.beta1),
              .rest1 = f(1.0 - options_.beta1),
              .beta2 = f(options_.beta2),
              .rest2 = f(1.0 - options_.beta2),
              .keep = f(1.0 - rate_ * options_.weight_decay),
              .rate = f(rate_ / correction(options_.beta1)),
              .root = f(1.0 / std::sqrt(correction(options_.beta2))),
              .epsilon = f(options_.epsilon)});
}

namespace {

using Arrays = std::vector<mx::array>;

// Each a pass over memory: {wanted, weights, gradient, scale, ..., state ..., the parameter if it has a master} -> {the
// state's next ..., the weights', the parameter's}. The weights are f32 if they are masters.
template <bool kMasters>
Arrays kept_unless_wanted(const Arrays& in, const Arrays& old, Arrays next) {
  for (size_t i = 0; i < next.size(); ++i) next[i] = mx::where(in[0], next[i], old[i]);
  const mx::array parameter = mx::astype(next.back(), kMasters ? in.back().dtype() : in[1].dtype());
  if (kMasters) {
    next.push_back(mx::where(in[0], parameter, in.back()));
  } else {
    next.back() = parameter;
  }
  return next;
}

// {..., decay, rate}
template <bool kMasters>
Arrays sgd(const Arrays& in) {
  const mx::array w = mx::astype(in[1], mx::float32), g = mx::astype(in[2], mx::float32) * in[3] + w * in[4];
  return kept_unless_wanted<kMasters>(in, {w}, {w - g * in[5]});
}

// {..., decay, rate, momentum, v}
template <bool kMasters>
Arrays sgd_with_momentum(const Arrays& in) {
  const mx::array w = mx::astype(in[1], mx::float32), g = mx::astype(in[2], mx::float32) * in[3] + w * in[4];
  const mx::array v = in[7] * in[6] + g;
  return kept_unless_wanted<kMasters>(in, {in[7], w}, {v, w - v * in[5]});
}

// {..., beta1, 1 - beta1, beta2, 1 - beta2, what the weights keep, rate, root, epsilon, m, v}
template <bool kMasters>
Arrays adamw(const Arrays& in) {
  const mx::array w = mx::astype(in[1], mx::float32), g = mx::astype(in[2], mx::float32) * in[3];
  const mx::array m = in[12] * in[4] + g * in[5], v = in[13] * in[6] + mx::square(g) * in[7];
  return kept_unless_wanted<kMasters>(in, {in[12], in[13], w},
                                      {m, v, w * in[8] - m * in[9] / (mx::sqrt(v) * in[10] + in[11])});
}

}  // namespace

mx::array Optimizer::scalar(double value) {
  const auto narrow = static_cast<float>(value);
  return scalars_.try_emplace(narrow, narrow).first->second;
}

void Optimizer::update_in_mlx(size_t index, mx::array& parameter, const mx::array& gradient, float scale, int64_t row,
                              const mx::array& wanted) {
  const int begin = static_cast<int>(row), end = begin + gradient.shape(0);
  mx::array& weights = masters_.empty() ? parameter : masters_[index];
  const bool whole = begin == 0 && end == weights.shape(0);
  const auto rows_of = [&](mx::array& array) { return part(array, 0, begin, end); };
  const bool masters = !masters_.empty();
  Arrays in = {wanted, rows_of(weights), gradient, scalar(scale)};
  auto* pass = masters ? &sgd<true> : &sgd<false>;
  if (options_.kind == OptimizerOptions::Kind::sgd) {
    in.insert(in.end(), {scalar(options_.weight_decay), scalar(rate_)});
    if (options_.momentum != 0.0) {
      pass = masters ? &sgd_with_momentum<true> : &sgd_with_momentum<false>;
      in.push_back(scalar(options_.momentum));
    }
  } else {
    pass = masters ? &adamw<true> : &adamw<false>;
    in.insert(in.end(), {scalar(options_.beta1), scalar(1.0 - options_.beta1), scalar(options_.beta2),
                         scalar(1.0 - options_.beta2), scalar(1.0 - rate_ * options_.weight_decay),
                         scalar(rate_ / correction(options_.beta1)),
                         scalar(1.0 / std::sqrt(correction(options_.beta2))), scalar(options_.epsilon)});
  }
  for (auto& slot : state_) in.push_back(rows_of(slot[index]));
  if (masters) in.push_back(rows_of(parameter));
  Arrays next = one_pass(pass, in, Shapes::few);
  in.clear();
  // What the results replace, in the same order.
  std::vector<mx::array*> places;
  for (auto& slot : state_) places.push_back(&slot[index]);
  if (masters) places.push_back(&weights);
  places.push_back(&parameter);
  if (!whole) {
    // Nothing on the device may still read the rows that are written over.
    mx::eval(next);
    mx::synchronize();
  }
  for (size_t i = 0; i < places.size(); ++i) {
    if (whole) {
      *places[i] = next[i];
    } else {
      replace_rows(*places[i], begin, next[i]);
    }
  }
}

std::vector<std::pair<std::string, mx::array>> Optimizer::state() const {
  std::vector<std::pair<std::string, mx::array>> arrays;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (const size_t i : trained_.tensors()) {
      arrays.emplace_back(layout_[i].name + "." + slots_[slot], state_[slot][i]);
    }
  }
  return arrays;
}

void Optimizer::restore(const std::vector<std::pair<std::string, mx::array>>& state, int64_t steps) {
  std::map<std::string, mx::array> by_name(state.begin(), state.end());
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (const size_t i : trained_.tensors()) {
      const std::string name = layout_[i].name + "." + slots_[slot];
      const auto found = by_name.find(name);
      if (found == by_name.end()) fail(ErrorKind::input, "optimizer state: {} is missing", name);
      if (found->second.shape() != dims_of(layout_[i]) || found->second.dtype() != mx::float32) {
        fail(ErrorKind::input, "optimizer state: {} has another shape or dtype than the model's tensor", name);
      }
      state_[slot][i] = found->second;
      by_name.erase(found);
    }
  }
  if (!by_name.empty()) fail(ErrorKind::input, "optimizer state: {} belongs to no tensor here", by_name.begin()->first);
  steps_ = steps;
}

}  // namespace trunkline
