#include "train/optimizer.h"

#include <cmath>
#include <map>
#include <utility>

#include "base/fail.h"
#include "bridge/arrays.h"
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

void Optimizer::begin_step(double learning_rate) {
  ++steps_;
  rate_ = learning_rate;
}

void Optimizer::update(size_t index, mx::array& parameter, const mx::array& gradient, float scale, int64_t row) {
  if (in_place_) return update_in_place(index, parameter, gradient, scale, row);
  update_in_mlx(index, parameter, gradient, scale, row);
}

// 1 - beta^steps: what zeros at the start have taken from a running mean.
double Optimizer::correction(double beta) const {
  return options_.bias_correction ? 1.0 - std::pow(beta, static_cast<double>(steps_)) : 1.0;
}

// One pass over memory; MLX's operations on the processor would be a dozen, each with a temporary.
void Optimizer::update_in_place(size_t index, mx::array& parameter, const mx::array& gradient, float scale,
                                int64_t row) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const auto first = static_cast<size_t>(row) * (parameter.size() / static_cast<size_t>(parameter.shape(0)));
  const auto writable = [&](mx::array& array) {
    array = own(std::exchange(array, mx::array(0.0f)));
    return array.data<float>() + first;
  };
  const mx::array ordered = in_row_order(gradient);
  const float* g = ordered.data<float>();
  float* w = writable(parameter);
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
  const float beta1 = f(options_.beta1), beta2 = f(options_.beta2), rest1 = f(1.0 - options_.beta1),
              rest2 = f(1.0 - options_.beta2), keep = f(1.0 - rate_ * options_.weight_decay),
              rate = f(rate_ / correction(options_.beta1)), root = f(1.0 / std::sqrt(correction(options_.beta2))),
              epsilon = f(options_.epsilon);
  for (size_t i = 0; i < size; ++i) {
    const float x = g[i] * scale;
    m[i] = beta1 * m[i] + rest1 * x;
    v[i] = beta2 * v[i] + rest2 * (x * x);
    w[i] = keep * w[i] - rate * m[i] / (std::sqrt(v[i]) * root + epsilon);
  }
}

void Optimizer::update_in_mlx(size_t index, mx::array& parameter, const mx::array& gradient, float scale, int64_t row) {
  const auto f = [](double value) { return mx::array(static_cast<float>(value)); };
  const int begin = static_cast<int>(row), end = begin + gradient.shape(0);
  const auto rows_of = [&](const mx::array& array) { return part(array, 0, begin, end); };
  mx::array w = rows_of(parameter);
  mx::array g = mx::multiply(gradient, mx::array(scale));
  std::vector<mx::array> results;
  if (options_.kind == OptimizerOptions::Kind::sgd) {
    g = mx::add(g, mx::multiply(w, f(options_.weight_decay)));
    if (options_.momentum != 0.0) {
      g = mx::add(mx::multiply(rows_of(state_[0][index]), f(options_.momentum)), g);
      results.push_back(g);
    }
    w = mx::subtract(w, mx::multiply(g, f(rate_)));
  } else {
    const mx::array m =
        mx::add(mx::multiply(rows_of(state_[0][index]), f(options_.beta1)), mx::multiply(g, f(1.0 - options_.beta1)));
    const mx::array v = mx::add(mx::multiply(rows_of(state_[1][index]), f(options_.beta2)),
                                mx::multiply(mx::square(g), f(1.0 - options_.beta2)));
    const mx::array root =
        mx::add(mx::multiply(mx::sqrt(v), f(1.0 / std::sqrt(correction(options_.beta2)))), f(options_.epsilon));
    w = mx::subtract(mx::multiply(w, f(1.0 - rate_ * options_.weight_decay)),
                     mx::divide(mx::multiply(m, f(rate_ / correction(options_.beta1))), root));
    results = {m, v};
  }
  results.push_back(w);
  mx::eval(results);
  for (size_t slot = 0; slot < slots_.size(); ++slot) replace_rows(state_[slot][index], begin, results[slot]);
  replace_rows(parameter, begin, results.back());
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
