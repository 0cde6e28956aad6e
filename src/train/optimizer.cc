#include "train/optimizer.h"

#include <cmath>
#include <map>

#include "base/fail.h"

namespace trunkline {
namespace {

mx::Shape dims_of(const TensorShape& shape) { return {shape.dims.begin(), shape.dims.end()}; }

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, std::vector<TensorShape> layout)
    : options_(options), layout_(std::move(layout)) {
  if (options_.kind == OptimizerOptions::Kind::adamw) {
    slots_ = {"m", "v"};
  } else if (options_.momentum != 0.0) {
    slots_ = {"v"};
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    auto& arrays = state_.emplace_back();
    for (const TensorShape& shape : layout_) arrays.push_back(mx::zeros(dims_of(shape), mx::float32));
  }
}

void Optimizer::begin_step(double learning_rate) {
  ++steps_;
  rate_ = learning_rate;
}

void Optimizer::update(size_t index, mx::array& parameter, const mx::array& gradient, float scale) {
  const auto f = [](double value) { return mx::array(static_cast<float>(value)); };
  mx::array w = parameter;
  mx::array g = mx::multiply(gradient, mx::array(scale));
  std::vector<mx::array> results;
  if (options_.kind == OptimizerOptions::Kind::sgd) {
    if (options_.weight_decay != 0.0) g = mx::add(g, mx::multiply(w, f(options_.weight_decay)));
    if (options_.momentum != 0.0) {
      g = mx::add(mx::multiply(state_[0][index], f(options_.momentum)), g);
      results.push_back(g);
    }
    w = mx::subtract(w, mx::multiply(g, f(rate_)));
  } else {
    const double steps = static_cast<double>(steps_);
    const double correction1 = options_.bias_correction ? 1.0 - std::pow(options_.beta1, steps) : 1.0;
    const double correction2 = options_.bias_correction ? 1.0 - std::pow(options_.beta2, steps) : 1.0;
    const mx::array m =
        mx::add(mx::multiply(state_[0][index], f(options_.beta1)), mx::multiply(g, f(1.0 - options_.beta1)));
    const mx::array v = mx::add(mx::multiply(state_[1][index], f(options_.beta2)),
                                mx::multiply(mx::square(g), f(1.0 - options_.beta2)));
    const mx::array root = mx::add(mx::multiply(mx::sqrt(v), f(1.0 / std::sqrt(correction2))), f(options_.epsilon));
    w = mx::subtract(mx::multiply(w, f(1.0 - rate_ * options_.weight_decay)),
                     mx::divide(mx::multiply(m, f(rate_ / correction1)), root));
    results = {m, v};
  }
  results.push_back(w);
  mx::eval(results);
  for (size_t slot = 0; slot < slots_.size(); ++slot) state_[slot][index] = results[slot];
  parameter = results.back();
}

std::vector<std::pair<std::string, mx::array>> Optimizer::state() const {
  std::vector<std::pair<std::string, mx::array>> arrays;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (size_t i = 0; i < layout_.size(); ++i) {
      arrays.emplace_back(layout_[i].name + "." + slots_[slot], state_[slot][i]);
    }
  }
  return arrays;
}

void Optimizer::restore(const std::vector<std::pair<std::string, mx::array>>& state, int64_t steps) {
  std::map<std::string, mx::array> by_name(state.begin(), state.end());
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    for (size_t i = 0; i < layout_.size(); ++i) {
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
