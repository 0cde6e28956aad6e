#include "conform/checks.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/fail.h"
#include "train/clip.h"
#include "train/layerwise.h"
#include "train/optimizer.h"

namespace trunkline::conform {
namespace {

// |a - b|, infinite unless both are finite: no comparison lets a NaN pass.
double difference(double a, double b) {
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
}

}  // namespace

double relative(double value, double expected) { return difference(value, expected) / std::abs(expected); }

PartResult within(std::string part, double worst, double tolerance, std::string note) {
  return {std::move(part), worst, tolerance, std::move(note), worst <= tolerance};
}

void for_each_difference(const mx::array& a, const mx::array& b, const std::function<void(double, size_t)>& visit) {
  mx::array x = mx::contiguous(a), y = mx::contiguous(b);
  mx::eval(x, y);
  const auto *left = x.data<float>(), *right = y.data<float>();
  for (size_t i = 0; i < x.size(); ++i) visit(difference(left[i], right[i]), i);
}

Batch to_batch(const GoldenCase& golden) {
  std::vector<int32_t> positions, targets;
  for (int row = 0; row < golden.rows; ++row) {
    for (int column = 1; column < golden.length; ++column) {
      const int at = row * golden.length + column;
      const int32_t label = golden.labels[static_cast<size_t>(at)];
      if (label == -100) continue;
      positions.push_back(at - 1);
      targets.push_back(label);
    }
  }
  const int count = static_cast<int>(targets.size());
  if (count == 0) fail(ErrorKind::input, "{}: no targets", golden.directory.string());
  return {.ids = mx::array(golden.ids.begin(), {golden.rows, golden.length}, mx::int32),
          .positions = mx::array(positions.begin(), {count}, mx::int32),
          .targets = mx::array(targets.begin(), {count}, mx::int32),
          .target_count = count,
          .places = mx::arange(golden.length, mx::int32)};
}

LossAndGradients mean_loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                         const Batch& batch) {
  LossAndGradients result = loss_and_gradients(decoder, parameters, trained, batch);
  const mx::array scale(1.0f / static_cast<float>(batch.target_count));
  result.loss = result.loss * scale;
  for (mx::array& gradient : result.gradients) gradient = gradient * scale;
  mx::eval(result.gradients);
  result.loss.eval();
  return result;
}

PartResult check_logits(const std::string& part, const GoldenCase& golden, const mx::array& logits,
                        const mx::array& expected) {
  double worst = 0;
  size_t where = 0;
  const auto vocab = static_cast<size_t>(golden.checkpoint.shape.vocab);
  for_each_difference(logits, expected, [&](double distance, size_t i) {
    if (golden.ids[i / vocab] == 0 || distance <= worst) return;
    worst = distance;
    where = i / vocab;
  });
  const auto length = static_cast<size_t>(golden.length);
  return within(part, worst, 1e-4, fmt::format("absolute, row {} position {}", where / length, where % length));
}

PartResult check_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch, double loss,
                      double expected) {
  mx::array value = summed_loss(decoder, parameters, batch);
  const double validation = value.item<float>() / static_cast<double>(batch.target_count);
  return within("loss", std::max(relative(loss, expected), relative(validation, expected)), 1e-5, "relative");
}

PartResult check_gradients(const Decoder& decoder, const Trained& trained, const std::vector<mx::array>& gradients,
                           const std::vector<mx::array>& expected) {
  double worst = 0;
  std::string where = decoder.layout()[trained.tensors().front()].name;
  for (size_t i = 0; i < gradients.size(); ++i) {
    double furthest = 0;
    for_each_difference(gradients[i], expected[i], [&](double d, size_t) { furthest = std::max(furthest, d); });
    const double largest = mx::max(mx::abs(expected[i])).item<float>();
    const double ratio = furthest == 0 ? 0 : furthest / largest;
    if (ratio <= worst) continue;
    worst = ratio;
    where = decoder.layout()[trained.tensors()[i]].name;
  }
  return within("gradients", worst, 1e-4, fmt::format("of the largest entry, {}", where));
}

PartResult check_layerwise(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                           const Batch& batch, double expected_loss, const std::vector<mx::array>& expected) {
  const int64_t length = batch.ids.shape(1), vocab = decoder.shape().vocab, layers = decoder.shape().layers;
  const std::vector<StepBlocks> cuts = {{length, length, batch.target_count, vocab, layers, 0},
                                        {length - 1, length - 1, batch.target_count - 1, vocab - 1, 0, layers},
                                        {1, 1, 1, vocab, 1, 0},
                                        {7, 5, 3, vocab / 3, 0, 0},
                                        {16, 11, 64, 10, 0, 1}};
  PartResult worst = within("gradients layer by layer", -1, 1e-4);
  for (const StepBlocks& cut : cuts) {
    LayerwisePass pass(decoder, parameters, trained, batch, cut);
    const double count = static_cast<double>(batch.target_count), loss = pass.forward() / count;
    std::vector<std::vector<mx::array>> rows(parameters.size());
    pass.backward([&](const Piece& piece, const std::vector<mx::array>& gradients) {
      for (size_t i = 0; i < piece.rows.size(); ++i) rows[piece.rows[i].tensor].push_back(gradients[i]);
    });
    std::vector<mx::array> gradients;
    for (const size_t tensor : trained.tensors()) {
      gradients.push_back(mx::concatenate(rows[tensor], 0) * mx::array(static_cast<float>(1 / count)));
    }
    PartResult result = check_gradients(decoder, trained, gradients, expected);
    // The loss has a tolerance of its own, a tenth.
    result.worst = std::max(result.worst, 10 * relative(loss, expected_loss));
    if (result.worst <= worst.worst) continue;
    worst = within(worst.part, result.worst, 1e-4,
                   fmt::format("{}; of {} cuts, {} queries, {} tokens, {} logits, {} rows", result.note, cuts.size(),
                               cut.queries, cut.tokens, cut.logits, cut.vocab_rows));
  }
  return worst;
}

PartResult check_run(const GoldenRun& run, const Decoder& decoder, const Trained& trained, const Batch& batch,
                     Parameters& weights) {
  Optimizer optimizer(run.optimizer, decoder.layout(), trained);
  double worst = 0;
  int where = 0;
  for (int step = 0; step <= run.steps; ++step) {
    LossAndGradients now = mean_loss_and_gradients(decoder, weights, trained, batch);
    const double distance = relative(now.loss.item<float>(), run.losses[static_cast<size_t>(step)]);
    if (distance > worst) {
      worst = distance;
      where = step;
    }
    if (step == run.steps) break;
    const double factor = run.max_norm == 0 ? 1.0 : clip_factor(global_norm(now.gradients), run.max_norm);
    optimizer.begin_step(run.learning_rate);
    for (size_t i = 0; i < now.gradients.size(); ++i) {
      const size_t tensor = trained.tensors()[i];
      optimizer.update(tensor, weights[tensor], now.gradients[i], static_cast<float>(factor));
    }
  }
  return within("losses along " + run.name, worst, 1e-4, fmt::format("relative, after {} steps", where));
}

PartResult check_adamw_weights(const std::string& part, const std::vector<mx::array>& weights,
                               const std::vector<mx::array>& expected) {
  double worst = 0, entries = 0, close = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for_each_difference(weights[i], expected[i], [&](double d, size_t) {
      worst = std::max(worst, d);
      close += d <= 1e-5;
      ++entries;
    });
  }
  const double share = close / entries;
  PartResult result =
      within(part, worst, 2e-3, fmt::format("absolute, {:.4f} % within 1e-5 (at least 99.9 %)", 100 * share));
  result.ok = result.ok && share >= 0.999;
  return result;
}

}  // namespace trunkline::conform
