#include "train/run_weights.h"

#include <algorithm>
#include <utility>

#include "bridge/arrays.h"
#include "train/layerwise.h"

namespace trunkline {

RunWeights::RunWeights(Group& group, const Decoder& decoder, Trained trained, Parameters parameters)
    : group_(group), decoder_(decoder), trained_(std::move(trained)), parameters_(std::move(parameters)) {}

void RunWeights::begin(const Options& options) {
  options_ = options;
  optimizer_.emplace(options_.optimizer, decoder_.layout(), trained_);
  if (options_.dtype == Dtype::f32) return;
  if (options_.masters) optimizer_->keep_masters(parameters_);
  parameters_ = cast(std::exchange(parameters_, {}), mx::bfloat16);
  mx::eval(parameters_);
}

void RunWeights::share(int64_t vocab_rows) {
  shards_.emplace(pieces_of(decoder_, trained_, vocab_rows), decoder_.layout(), group_.rank(), group_.size());
  sharded_.emplace(group_, decoder_, *shards_, optimizer_->weights(parameters_));
  const std::vector<TensorShape> parts = shards_->layout();
  optimizer_.emplace(options_.optimizer, parts, Trained::all(parts.size()));
}

int64_t RunWeights::state_bytes() const {
  const int64_t whole = optimizer_->state_bytes();
  if (!options_.shared) return whole;
  // The parts' weights are apart from the model's.
  const int64_t weights = optimizer_->has_masters() ? 0 : static_cast<int64_t>(sizeof(float));
  return (whole + weights + group_.size() - 1) / group_.size();
}

Parameters RunWeights::trained_weights() {
  if (sharded_) {
    const bool masters = options_.dtype != Dtype::f32;
    Parameters whole = masters ? gather_parts(group_, *shards_, sharded_->own()) : Parameters();
    if (group_.rank() != 0) return {};
    if (masters) return trained_.of(whole);
  }
  return cast(trained_.of(optimizer_->weights(parameters_)), mx::float32);
}

NamedArrays RunWeights::optimizer_state() {
  return shards_ ? gather_state(group_, *shards_, optimizer_->state()) : optimizer_->state();
}

void RunWeights::restore_optimizer(NamedArrays whole, int64_t steps) {
  if (shards_) return optimizer_->restore(scatter_state(group_, *shards_, whole, optimizer_->state()), steps);
  NamedArrays state = group_.rank() == 0 ? std::move(whole) : optimizer_->state();
  std::ranges::sort(state, {}, &NamedArrays::value_type::first);
  std::vector<mx::array> arrays;
  for (auto& [name, array] : state) arrays.push_back(std::exchange(array, mx::array(0.0f)));
  broadcast(group_, arrays, 0);
  for (size_t i = 0; i < arrays.size(); ++i) state[i].second = std::exchange(arrays[i], mx::array(0.0f));
  optimizer_->restore(state, steps);
}

void RunWeights::gather() {
  if (!sharded_) return;
  sharded_->start(parameters_);
  sharded_->finish();
}

void RunWeights::end() {
  sharded_.reset();
  shards_.reset();
  optimizer_.reset();
}

void RunWeights::compute_with(const Parameters& trained_weights) {
  for (size_t i = 0; i < trained_weights.size(); ++i) {
    mx::array& parameter = parameters_[trained_.tensors()[i]];
    parameter = mx::astype(trained_weights[i], parameter.dtype());
  }
  mx::eval(parameters_);
}

}  // namespace trunkline
