#include "train/layerwise.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "bridge/arrays.h"
#include "train/cross_entropy.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

std::vector<int32_t> values_of(const mx::array& array) {
  const mx::array ordered = in_row_order(array);
  return {ordered.data<int32_t>(), ordered.data<int32_t>() + ordered.size()};
}

mx::array indices(const std::vector<int32_t>& values) {
  return mx::array(values.begin(), {static_cast<int>(values.size())}, mx::int32);
}

// Read together: each reading waits for the device.
double sum_of(const Arrays& scalars) {
  if (scalars.empty()) return 0.0;
  mx::array all = mx::stack(scalars);
  all.eval();
  return std::accumulate(all.data<float>(), all.data<float>() + all.size(), 0.0);
}

std::vector<int> tensors_of(const Piece& piece) {
  std::vector<int> tensors;
  for (const TensorRows& rows : piece.rows) tensors.push_back(static_cast<int>(rows.tensor));
  return tensors;
}

// The halves of all layers, counted along the forward pass.
int64_t place_of(int64_t layer, Half half) { return 2 * layer + (half == Half::mlp ? 1 : 0); }

}  // namespace

LayerwisePass::LayerwisePass(const Decoder& decoder, const Parameters& parameters, Trained trained, const Batch& batch,
                             const StepBlocks& blocks, std::function<void()> after_block)
    : decoder_(decoder),
      parameters_(parameters),
      trained_(std::move(trained)),
      batch_(batch),
      blocks_(blocks),
      lowest_(decoder.shape().layers),
      pacer_(std::move(after_block)),
      ids_(values_of(batch.ids)),
      targets_(values_of(batch.targets)),
      norms_(decoder.magnitude_count(), mx::zeros({0})) {
  for (const Piece& piece : pieces_of(decoder, trained_, blocks.vocab_rows)) {
    if (piece.layer >= 0) lowest_ = piece.layer;
  }
  to_embedding_ = is_trained(decoder.embedding_index());
  for (const int tensor : decoder.embedding_layer().adapter_tensors())
    to_embedding_ = to_embedding_ || is_trained(tensor);
  if (to_embedding_) lowest_ = 0;
  for (const int tensor : decoder.head_layer().adapter_tensors()) {
    if (is_trained(tensor)) head_tensors_.push_back(tensor);
  }
}

LayerPass LayerwisePass::layer_pass() {
  return {decoder_,    parameters_, norms_,         trained_,
          batch_.mask, *rope_,      batch_.dropout, {narrow(blocks_.queries), narrow(blocks_.tokens)},
          pacer_};
}

Keep LayerwisePass::keep_of(int64_t layer) const {
  const int64_t from_last = decoder_.shape().layers - 1 - layer;
  const int64_t products = blocks_.keep_all + blocks_.keep_products;
  if (from_last < products) return from_last < blocks_.keep_all ? Keep::all : Keep::products;
  return from_last < products + blocks_.keep_attention ? Keep::attention : Keep::input;
}

// As Decoder::scaled_layers counts.
void LayerwisePass::make_norms(int64_t layer) {
  before_layer_(layer);
  if (given_norms_) return;
  Arrays made;
  for (const LinearIndex* at : decoder_.scaled_layers(layer)) {
    made.push_back(weight_norms(parameters_, *at));
    norms_[static_cast<size_t>(at->norms) - decoder_.layout().size()] = made.back();
  }
  if (!made.empty()) pacer_.queue(std::move(made));
}

Parameters LayerwisePass::with_norms() const {
  Parameters all = parameters_;
  all.insert(all.end(), norms_.begin(), norms_.end());
  return all;
}

// From the embedding to the last layer's output where targets are predicted.
void LayerwisePass::run_layers(bool keep) {
  make_norms(-1);
  mx::array x = decoder_.embed(with_norms(), batch_.ids);
  rope_ = decoder_.rope_table(batch_.places, x.dtype());
  mx::eval(x, rope_->cosine, rope_->sine);
  const LayerPass pass = layer_pass();
  for (int64_t layer = 0; layer < decoder_.shape().layers; ++layer) {
    make_norms(layer);
    const bool keeps = keep && layer >= lowest_;
    LayerPass::Forward result = pass.forward(layer, x, keeps ? keep_of(layer) : Keep::input);
    x = std::move(result.output);
    if (keeps) kept_.push_back(std::move(result.kept));
  }
  states_ = mx::take(mx::reshape(x, {-1, x.shape(-1)}), batch_.positions, 0);
  states_->eval();
  make_norms(decoder_.shape().layers);
}

double LayerwisePass::forward() {
  run_layers(true);
  const bool is_matrix = decoder_.head_is_matrix();
  const Parameters parameters = with_norms();
  const mx::array& head = decoder_.head_weight(parameters);
  const int targets = states_->shape(0);
  const bool to_head = is_trained(decoder_.head_index()), to_norm = is_trained(decoder_.norm_index());
  const bool whole = to_head && blocks_.vocab_rows >= decoder_.shape().vocab;
  Assembly gradient(states_->shape(), states_->dtype(), 0), log_sums({targets, 1}, mx::float32, 0),
      all_normed(states_->shape(), states_->dtype(), 0);
  Accumulation norm_gradient(parameters_[static_cast<size_t>(decoder_.norm_index())].shape());
  std::vector<Accumulation> head_sums;
  for (const int tensor : head_tensors_) head_sums.emplace_back(parameters_[static_cast<size_t>(tensor)].shape());
  std::optional<Dropout> dropout;
  if (batch_.dropout && !is_matrix) dropout = batch_.dropout->at(batch_.positions);
  Arrays losses;
  const auto norm = [&](const Arrays& in) {
    Parameters normed = parameters_;
    normed[static_cast<size_t>(decoder_.norm_index())] = in[1];
    return Arrays{decoder_.norm(normed, in[0])};
  };
  // As in a layer, nothing of a block is held when it is queued but what it is made for.
  const auto matrix_back = [&](int begin, int end, const mx::array& normed) {
    const HeadBlock block = head_block(normed, head, part(batch_.targets, 0, begin, end));
    losses.push_back(block.loss);
    if (to_head) {
      log_sums.put(begin, end, block.log_sums);
      all_normed.put(begin, end, normed);
    }
    if (whole) {
      whole_head_gradient_ =
          add_product(std::exchange(whole_head_gradient_, std::nullopt), block.probabilities, normed);
    }
    return block.x_gradient;
  };
  const auto function_back = [&](int begin, int end, const mx::array& normed) {
    Arrays in = {normed};
    for (const int tensor : head_tensors_) in.push_back(parameters_[static_cast<size_t>(tensor)]);
    const std::optional<Dropout> here = dropout ? std::optional(dropout->part(begin, end)) : std::nullopt;
    const HeadFunctionBlock block = head_function_block(head_function(decoder_, parameters, head_tensors_, here), in,
                                                        part(batch_.targets, 0, begin, end));
    losses.push_back(block.loss);
    for (size_t i = 0; i < head_sums.size(); ++i) head_sums[i].add(block.gradients[i + 1]);
    return block.gradients.front();
  };
  const auto to_loss_and_back = [&](int begin, int end) {
    const mx::array x = part(*states_, 0, begin, end), normed = decoder_.norm(parameters_, x);
    const mx::array d = is_matrix ? matrix_back(begin, end, normed) : function_back(begin, end, normed);
    const mx::array& weight = parameters_[static_cast<size_t>(decoder_.norm_index())];
    const Arrays owed = mx::vjp(norm, {x, weight}, {d}).second;
    gradient.put(begin, end, owed[0]);
    if (to_norm) norm_gradient.add(owed[1]);
  };
  for (const auto& [begin, end] : parts_of(targets, narrow(blocks_.logits))) {
    to_loss_and_back(begin, end);
    Arrays made = {losses.back(), gradient.value()};
    if (to_norm) made.push_back(norm_gradient.value());
    if (to_head) made.insert(made.end(), {log_sums.value(), all_normed.value()});
    if (whole) made.push_back(*whole_head_gradient_);
    for (const Accumulation& sum : head_sums) made.push_back(sum.value());
    pacer_.queue(std::move(made));
  }
  states_gradient_ = gradient.take();
  states_.reset();
  if (to_norm) norm_gradient_ = norm_gradient.take();
  for (Accumulation& sum : head_sums) head_gradients_.push_back(sum.take());
  if (to_head) {
    log_sums_ = log_sums.take();
    normed_ = all_normed.take();
  }
  return sum_of(losses);
}

double LayerwisePass::loss() {
  run_layers(false);
  const Parameters parameters = with_norms();
  const auto value = [&](const mx::array& normed, const mx::array& targets) {
    if (decoder_.head_is_matrix()) {
      return summed_cross_entropy_value(normed, decoder_.head_weight(parameters_), targets);
    }
    return head_function_value(head_function(decoder_, parameters), normed, static_cast<int>(decoder_.shape().vocab),
                               targets);
  };
  Arrays losses;
  for (const auto& [begin, end] : parts_of(states_->shape(0), narrow(blocks_.logits))) {
    const mx::array normed = decoder_.norm(parameters_, part(*states_, 0, begin, end));
    losses.push_back(value(normed, part(batch_.targets, 0, begin, end)));
    pacer_.queue({losses.back()});
  }
  return sum_of(losses);
}

// The gradient of rows of the head: made in the forward pass where it is whole, else by a second pass over their
// logits.
mx::array LayerwisePass::head_gradient(int64_t row, int64_t rows, Arrays others) {
  const mx::array head = part(decoder_.head_weight(parameters_), 0, narrow(row), narrow(row + rows));
  Accumulation sum({narrow(rows), head.shape(1)});
  if (!others.empty()) sum.add(std::exchange(others.front(), mx::array(0.0f)));
  if (whole_head_gradient_) sum.add(*std::exchange(whole_head_gradient_, std::nullopt));
  if (blocks_.vocab_rows < decoder_.shape().vocab) {
    for (const auto& [begin, end] :
         parts_of(normed_->shape(0), narrow(blocks_.logits * decoder_.shape().vocab / rows))) {
      sum.add(head_rows_gradient(part(*normed_, 0, begin, end), head, part(*log_sums_, 0, begin, end)));
      pacer_.queue({sum.value()});
    }
  }
  std::vector<int32_t> places, targets;
  for (size_t t = 0; t < targets_.size(); ++t) {
    if (targets_[t] < row || targets_[t] >= row + rows) continue;
    places.push_back(static_cast<int32_t>(t));
    targets.push_back(targets_[t] - static_cast<int32_t>(row));
  }
  mx::array made = sum.take(mx::float32);
  for (const auto& [begin, end] : parts_of(static_cast<int>(places.size()), narrow(blocks_.logits))) {
    const std::vector<int32_t> where(places.begin() + begin, places.begin() + end);
    const std::vector<int32_t> which(targets.begin() + begin, targets.begin() + end);
    const mx::array normed = mx::take(*normed_, indices(where), 0);
    made = subtract_targets(std::exchange(made, mx::array(0.0f)), normed, indices(which));
    pacer_.queue({made});
  }
  return made;
}

// Adds what the look-up of ids owes to rows of the embedding.
mx::array LayerwisePass::add_embedding_gradient(mx::array gradient, const mx::array& d, int64_t row) const {
  const int64_t rows = gradient.shape(0);
  std::vector<int32_t> places, which;
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (ids_[i] < row || ids_[i] >= row + rows) continue;
    places.push_back(static_cast<int32_t>(i));
    which.push_back(ids_[i] - static_cast<int32_t>(row));
  }
  if (places.empty()) return gradient;
  const mx::array owed = mx::astype(places.size() == ids_.size() ? d : mx::take(d, indices(places), 0), mx::float32);
  return mx::scatter_add(std::exchange(gradient, mx::array(0.0f)), indices(which), mx::expand_dims(owed, 1), 0);
}

// The gradients of tensors of the embedding's adapter; d [B, L, C].
Arrays LayerwisePass::embedding_adapter_gradients(const std::vector<int>& tensors, const mx::array& d) {
  Arrays primals;
  std::vector<Accumulation> sums;
  for (const int tensor : tensors) {
    primals.push_back(parameters_[static_cast<size_t>(tensor)]);
    sums.emplace_back(primals.back().shape());
  }
  for (const auto& [begin, end] : parts_of(batch_.ids.shape(1), narrow(blocks_.tokens))) {
    const mx::array ids = part(batch_.ids, 1, begin, end);
    const auto embed = [&](const Arrays& in) {
      Parameters parameters = with_norms();
      for (size_t i = 0; i < tensors.size(); ++i) parameters[static_cast<size_t>(tensors[i])] = in[i];
      return Arrays{decoder_.embed(parameters, ids)};
    };
    const Arrays owed = mx::vjp(embed, primals, {part(d, 1, begin, end)}).second;
    Arrays made;
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i].add(owed[i]);
      made.push_back(sums[i].value());
    }
    pacer_.queue(std::move(made));
  }
  Arrays gradients;
  for (Accumulation& sum : sums) gradients.push_back(sum.take());
  return gradients;
}

// The gradient of the last layer's output [B, L, C], which owes nothing where no target is predicted.
mx::array LayerwisePass::last_output_gradient() {
  const mx::array owed = *std::exchange(states_gradient_, std::nullopt);
  const int rows = batch_.ids.shape(0), tokens = batch_.ids.shape(1), width = owed.shape(1);
  const mx::array zeros = mx::zeros({rows * tokens, width}, owed.dtype());
  mx::array all = mx::scatter_add(zeros, batch_.positions, mx::expand_dims(owed, 1), 0);
  all = mx::reshape(all, {rows, tokens, width});
  all.eval();
  return all;
}

// The gradients of the half before the one that input_gradient_ stands at.
Arrays LayerwisePass::next_half() {
  --place_;
  const LayerPass pass = layer_pass();
  const int64_t layer = place_ / 2;
  LayerPass::Backward result;
  mx::array owed = *std::exchange(input_gradient_, std::nullopt);
  if (place_ == place_of(layer, Half::mlp)) {
    result = pass.mlp_backward(layer, kept_.back(), std::move(owed));
  } else {
    result = pass.attention_backward(layer, std::move(kept_.back()), std::move(owed), to_embedding_ || layer > lowest_);
    kept_.pop_back();
  }
  input_gradient_ = std::exchange(result.input, std::nullopt);
  Arrays gradients;
  for (auto& [index, gradient] : result.tensors) gradients.push_back(std::exchange(gradient, mx::array(0.0f)));
  return gradients;
}

void LayerwisePass::go_on_from(LayerwisePass& before) {
  whole_head_gradient_ = std::exchange(before.whole_head_gradient_, std::nullopt);
  norms_ = before.norms_;
  given_norms_ = true;
}

Arrays LayerwisePass::gradients_of(const Piece& piece, Arrays others) {
  if (place_ < 0) {
    input_gradient_ = last_output_gradient();
    place_ = place_of(decoder_.shape().layers, Half::attention);
  }
  const TensorRows& first = piece.rows.front();
  const auto tensor = static_cast<int>(first.tensor);
  const bool head = tensor == decoder_.head_index(), embedding = tensor == decoder_.embedding_index();
  Arrays gradients;
  if (piece.layer >= 0) {
    // Those between have nothing trained.
    while (place_ > place_of(piece.layer, piece.half)) gradients = next_half();
  } else if (embedding) {
    while (place_ > 0) next_half();
    const mx::array owed = mx::reshape(*input_gradient_, {-1, input_gradient_->shape(-1)});
    mx::array sum = decoder_.shape().tied ? head_gradient(first.row, first.rows, std::exchange(others, {}))
                    : others.empty()      ? mx::zeros({narrow(first.rows), owed.shape(1)}, mx::float32)
                                          : std::exchange(others, {}).front();
    gradients = {add_embedding_gradient(std::exchange(sum, mx::array(0.0f)), owed, first.row)};
  } else if (head) {
    gradients = {head_gradient(first.row, first.rows, std::exchange(others, {}))};
  } else if (std::ranges::count(head_tensors_, tensor) > 0) {
    gradients = std::exchange(head_gradients_, {});
  } else if (std::ranges::count(decoder_.embedding_layer().adapter_tensors(), tensor) > 0) {
    while (place_ > 0) next_half();
    gradients = embedding_adapter_gradients(tensors_of(piece), *input_gradient_);
  } else {
    gradients = {*std::exchange(norm_gradient_, std::nullopt)};
  }
  if (head && !embedding && first.row + first.rows == decoder_.shape().vocab) normed_.reset();
  for (size_t i = 0; i < others.size(); ++i) {
    Accumulation sum(gradients[i].shape());
    sum.add(std::exchange(others[i], mx::array(0.0f)));
    sum.add(std::exchange(gradients[i], mx::array(0.0f)));
    gradients[i] = sum.take();
  }
  pacer_.queue(gradients);
  return gradients;
}

void LayerwisePass::backward(const HandOver& hand_over) {
  for (const Piece& piece : pieces_of(decoder_, trained_, blocks_.vocab_rows)) {
    hand_over(piece, gradients_of(piece, {}));
  }
}

}  // namespace trunkline
