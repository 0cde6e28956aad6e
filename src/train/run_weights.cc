#include "train/run_weights.h"

#include <algorithm>
#include <utility>

#include "bridge/arrays.h"
#include "train/pieces.h"

namespace trunkline {

RunWeights::RunWeights(Group& group, const Decoder& decoder, Trained trained, Parameters parameters)
    : group_(group), decoder_(decoder), trained_(std::move(trained)), parameters_(std::move(parameters)) {}

void RunWeights::begin(const Options& options) {
  options_ = options;
  optimizer_.emplace(options_.optimizer, decoder_.layout(), trained_);
  if (options_.dtype != Dtype::f32) {
    if (options_.masters) optimizer_->keep_masters(parameters_);
    parameters_ = cast(std::exchange(parameters_, {}), mx::bfloat16);
    mx::eval(parameters_);
  }
  if (trained_.tensors().size() < parameters_.size()) part_ = trained_part();
}

void RunWeights::share(int64_t vocab_rows) {
  shards_.emplace(pieces_of(decoder_, trained_, vocab_rows), decoder_.layout(), group_.rank(), group_.size());
  sharded_.emplace(group_, decoder_, *shards_, optimizer_->weights(parameters_));
  const std::vector<TensorShape> parts = shards_->layout();
  optimizer_.emplace(options_.optimizer, parts, Trained::all(parts.size()));
}

StepSize RunWeights::size() const {
  const int64_t ranks = options_.shared ? group_.size() : 1;
  int64_t state = optimizer_->state_bytes();
  // A shared optimizer's parts have their weights apart from the model's.
  if (options_.shared && !optimizer_->has_masters()) state += static_cast<int64_t>(sizeof(float));
  const auto norm = static_cast<size_t>(decoder_.norm_index());
  return {.width = static_cast<int64_t>(parameters_[norm].itemsize()),
          .state_width = (state + ranks - 1) / ranks,
          .part = part_};
}

StepSize::Part RunWeights::trained_part() const {
  const int64_t layers = decoder_.shape().layers;
  StepSize::Part part;
  // As measured: what the base and an adapter give, and with a magnitude their product with it and the gradients.
  if (!decoder_.head_is_matrix()) part.logit_copies = decoder_.head_layer().magnitude < 0 ? 3 : 5;
  for (const mx::array& tensor : parameters_) part.weight_bytes += static_cast<int64_t>(tensor.nbytes());
  std::vector<int> embedding = decoder_.embedding_layer().adapter_tensors();
  embedding.push_back(decoder_.embedding_index());
  for (const Piece& piece : pieces_of(decoder_, trained_, decoder_.shape().vocab)) {
    int64_t parameters = 0;
    for (const TensorRows& rows : piece.rows) {
      parameters += static_cast<int64_t>(parameters_[rows.tensor].size());
      const auto tensor = static_cast<int>(rows.tensor);
      part.head = part.head || tensor == decoder_.head_index() || tensor == decoder_.embedding_index();
      if (std::ranges::count(embedding, tensor) > 0) part.layers = layers;
    }
    part.parameters += parameters;
    if (piece.layer < 0) continue;
    part.layers = std::max(part.layers, layers - piece.layer);
    int64_t& largest = piece.half == Half::mlp ? part.mlp : part.attention;
    largest = std::max(largest, parameters);
  }
  return part;
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
