#include "train/step.h"

#include <cmath>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "bridge/arrays.h"
#include "train/clip.h"
#include "train/loss.h"
#include "train/together.h"

namespace trunkline {
namespace {

std::vector<RowView> views(const Dataset& rows, const MicroBatch& indices) {
  std::vector<RowView> found;
  for (const int64_t index : indices) found.push_back(rows.row(index));
  return found;
}

struct Sums {
  double loss = 0.0;
  Parameters gradients;
};

// This rank's sums over its micro-batches. A loss that is not finite ends them: no backward pass is run on it.
Sums compute(const StepContext& context, std::span<const MicroBatch> mine) {
  Sums sums;
  for (const MicroBatch& micro_batch : mine) {
    auto [loss, gradients] =
        loss_and_gradients(context.decoder, context.parameters, make_batch(views(context.rows, micro_batch)));
    sums.loss += loss.item<float>();
    if (!std::isfinite(sums.loss)) return sums;
    if (sums.gradients.empty()) {
      sums.gradients = std::move(gradients);
    } else {
      for (size_t i = 0; i < gradients.size(); ++i) {
        sums.gradients[i] = mx::add(std::exchange(sums.gradients[i], mx::array(0.0f)), gradients[i]);
      }
    }
    gradients.clear();
    mx::eval(sums.gradients);
  }
  for (size_t i = 0; sums.gradients.size() < context.parameters.size(); ++i) {
    sums.gradients.push_back(mx::zeros_like(context.parameters[i]));
  }
  return sums;
}

// The loss over all ranks. Throws if some rank's is not finite.
double agree_on_loss(const StepContext& context, int64_t number, double mine) {
  double total = 0.0;
  const auto losses = gather_values(context.group, {mine});
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    if (!std::isfinite(losses[rank][0])) {
      const auto weight = first_not_finite(context.parameters);
      fail(ErrorKind::numeric, "step {}: the loss is not finite ({}, on rank {}){}", number, losses[rank][0], rank,
           weight ? fmt::format("; neither is the tensor {}", context.decoder.layout()[*weight].name) : "");
    }
    total += losses[rank][0];
  }
  return total;
}

double norm_of_finite(const StepContext& context, int64_t number, const Parameters& gradients) {
  double total = 0.0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const double squared = squared_norm(gradients[i]);
    if (!std::isfinite(squared)) {
      fail(ErrorKind::numeric, "step {}: the gradient of {} is not finite", number, context.decoder.layout()[i].name);
    }
    total += squared;
  }
  return std::sqrt(total);
}

}  // namespace

StepResult run_step(StepContext& context, int64_t number, std::span<const MicroBatch> mine, double learning_rate,
                    bool stop_wish) {
  int64_t counts[3] = {0, 0, stop_wish ? 1 : 0};  // targets, tokens, wishes to stop
  for (const MicroBatch& micro_batch : mine) {
    for (const int64_t index : micro_batch) {
      counts[0] += context.rows.row(index).target_count;
      counts[1] += context.rows.length(index);
    }
  }
  context.group.all_sum(counts, counts, 3, Dtype::i64);
  StepResult result{.targets = counts[0], .tokens = counts[1], .stop = counts[2] > 0};
  if (result.targets == 0) fail(ErrorKind::input, "step {}: no row has a target", number);

  Sums sums;
  together(context.group, [&] { sums = compute(context, mine); });
  const auto count = static_cast<double>(result.targets);
  result.loss = agree_on_loss(context, number, sums.loss) / count;
  all_sum(context.group, sums.gradients);
  result.grad_norm = norm_of_finite(context, number, sums.gradients) / count;

  const double factor = context.max_grad_norm > 0.0 ? clip_factor(result.grad_norm, context.max_grad_norm) : 1.0;
  context.optimizer.begin_step(learning_rate);
  for (size_t i = 0; i < sums.gradients.size(); ++i) {
    // Each gradient is let go of as soon as it has been used.
    const mx::array gradient = std::exchange(sums.gradients[i], mx::array(0.0f));
    context.optimizer.update(i, context.parameters[i], gradient, static_cast<float>(factor / count));
  }
  return result;
}

}  // namespace trunkline
