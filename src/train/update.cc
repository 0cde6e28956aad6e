#include "train/update.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/fail.h"
#include "train/clip.h"
#include "train/together.h"

namespace trunkline {

Update::Update(const Decoder& decoder, Parameters& parameters, Optimizer& optimizer, Timeline& timeline, int64_t number,
               int64_t targets, const UpdateOptions& options)
    : decoder_(decoder),
      parameters_(parameters),
      optimizer_(optimizer),
      timeline_(timeline),
      number_(number),
      targets_(static_cast<double>(targets)),
      options_(options) {
  if (options_.max_grad_norm > 0.0 && !options_.hold) {
    fail(ErrorKind::input, "clipping by the global norm needs all gradients to be held");
  }
  if (options_.refuses && !options_.hold) fail(ErrorKind::input, "to leave an update out, all gradients must be held");
  optimizer_.begin_step(options_.learning_rate);
}

void Update::take(const Piece& piece, std::vector<mx::array> gradients) {
  const Timeline::Span span(timeline_, Timeline::Track::update, "update of " + piece.name);
  check(piece, gradients);
  if (!bad_.empty()) return;
  if (options_.hold) {
    held_.emplace_back(piece, std::move(gradients));
  } else {
    apply(piece, gradients, 1.0);
  }
}

void Update::check(const Piece& piece, const std::vector<mx::array>& gradients) {
  if (lazy_) {
    const mx::array squares = squared_norms_on_device(gradients);
    finite_ = mx::logical_and(finite_, mx::isfinite(mx::sum(squares)));
    unread_.push_back({piece.rows, squares, updated_});
    return mx::async_eval(squares, finite_);
  }
  for (size_t i = 0; i < piece.rows.size(); ++i) {
    count(piece.rows[i].tensor, squared_norm(gradients[i]));
  }
}

void Update::count(size_t index, double squares) {
  // What is everyone's counts once.
  const bool counts =
      options_.shards == nullptr || !options_.shards->parts()[index].everyones || options_.shards->rank() == 0;
  if (counts) squares_ += squares;
  if (!std::isfinite(squares)) bad_.push_back(tensor_of(index));
}

// Read together: each reading waits for the device.
void Update::read_squares() {
  if (unread_.empty()) return;
  std::vector<mx::array> all;
  for (const Unread& unread : unread_) all.push_back(unread.squares);
  mx::array squares_of_all = mx::concatenate(all);
  squares_of_all.eval();
  const float* next = squares_of_all.data<float>();
  for (const Unread& unread : unread_) {
    for (const TensorRows& rows : unread.rows) {
      const double squares = static_cast<double>(*next++) / kSquaresScale;
      if (bad_.empty() && !std::isfinite(squares)) updated_ = unread.updated_before;
      count(rows.tensor, squares);
    }
  }
  unread_.clear();
}

void Update::apply(const Piece& piece, std::vector<mx::array>& gradients, double factor) {
  std::vector<mx::array> made;
  for (size_t i = 0; i < piece.rows.size(); ++i) {
    // Each gradient is let go of as soon as it has been used.
    const mx::array gradient = std::exchange(gradients[i], mx::array(0.0f));
    const auto& [tensor, row, rows] = piece.rows[i];
    optimizer_.update(tensor, parameters_[tensor], gradient, static_cast<float>(factor / targets_), row, finite_);
    if (lazy_) std::ranges::copy(optimizer_.made(tensor, parameters_[tensor]), std::back_inserter(made));
    updated_ = true;
  }
  if (lazy_) mx::async_eval(std::move(made));
}

size_t Update::tensor_of(size_t index) const {
  return options_.shards == nullptr ? index : options_.shards->parts()[index].rows.tensor;
}

// What one rank found, all know.
void Update::agree() {
  if (options_.shards == nullptr) return;
  const double first_bad = bad_.empty() ? -1.0 : static_cast<double>(bad_.front());
  const auto all = gather_values(*options_.group, {squares_, first_bad, updated_ ? 1.0 : 0.0});
  squares_ = 0.0;
  bad_.clear();
  for (const auto& found : all) {
    squares_ += found[0];
    if (found[1] >= 0.0) bad_.push_back(static_cast<size_t>(found[1]));
    updated_ = updated_ || found[2] > 0.0;
  }
}

// All ranks come here: none of them ends, and the group with it, before the others know why.
void Update::fail_not_finite() const {
  const auto why = [&] {
    fail(ErrorKind::numeric, "step {}: the gradient of {} is not finite; {}", number_,
         decoder_.layout()[bad_.front()].name,
         updated_
             ? "other tensors were updated already, nothing of this step is saved (--hold-gradients checks all first)"
             : "nothing was updated");
  };
  options_.group == nullptr ? why() : together(*options_.group, why);
}

double Update::finish() {
  read_squares();
  agree();
  if (!bad_.empty()) fail_not_finite();
  const double norm = std::sqrt(squares_) / targets_;
  const double factor = options_.max_grad_norm > 0.0 ? clip_factor(norm, options_.max_grad_norm) : 1.0;
  refused_ = options_.refuses && options_.refuses(norm);
  if (refused_) held_.clear();
  if (!held_.empty()) {
    const Timeline::Span span(timeline_, Timeline::Track::update, "update");
    for (auto& [piece, gradients] : held_) apply(piece, gradients, factor);
    held_.clear();
  }
  if (lazy_) mx::synchronize();
  return norm;
}

}  // namespace trunkline
