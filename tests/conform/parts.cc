#include "conform/parts.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/fail.h"
#include "model/decoder.h"
#include "model/generate.h"
#include "train/clip.h"
#include "train/layerwise.h"
#include "train/loss.h"
#include "train/optimizer.h"

namespace trunkline::conform {
namespace {

// |a - b|, infinite unless both are finite: no comparison lets a NaN pass.
double difference(double a, double b) {
  return std::isfinite(a) && std::isfinite(b) ? std::abs(a - b) : std::numeric_limits<double>::infinity();
}

double relative(double value, double expected) { return difference(value, expected) / std::abs(expected); }

PartResult within(std::string part, double worst, double tolerance, std::string note = "") {
  return {std::move(part), worst, tolerance, std::move(note), worst <= tolerance};
}

// Calls visit(|a - b|, index) for every entry of two f32 arrays of one shape.
void for_each_difference(const mx::array& a, const mx::array& b, const std::function<void(double, size_t)>& visit) {
  mx::array x = mx::contiguous(a), y = mx::contiguous(b);
  mx::eval(x, y);
  const auto *left = x.data<float>(), *right = y.data<float>();
  for (size_t i = 0; i < x.size(); ++i) visit(difference(left[i], right[i]), i);
}

// The case's rows whole: a target is predicted one position before it.
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

Trained all_of(const Decoder& decoder) { return Trained::all(decoder.layout().size()); }

// The mean loss and its gradient.
LossAndGradients mean_loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  LossAndGradients result = loss_and_gradients(decoder, parameters, all_of(decoder), batch);
  const mx::array scale(1.0f / static_cast<float>(batch.target_count));
  result.loss = result.loss * scale;
  for (mx::array& gradient : result.gradients) gradient = gradient * scale;
  mx::eval(result.gradients);
  result.loss.eval();
  return result;
}

PartResult check_logits(const GoldenCase& golden, const Decoder& decoder, const Parameters& parameters,
                        const Batch& batch) {
  double worst = 0;
  size_t where = 0;
  const auto vocab = static_cast<size_t>(decoder.shape().vocab);
  for_each_difference(decoder.logits(parameters, batch.ids), golden.logits, [&](double distance, size_t i) {
    if (golden.ids[i / vocab] == 0 || distance <= worst) return;
    worst = distance;
    where = i / vocab;
  });
  const auto length = static_cast<size_t>(golden.length);
  return within("logits", worst, 1e-4, fmt::format("absolute, row {} position {}", where / length, where % length));
}

PartResult check_gradients(const GoldenCase& golden, const Parameters& gradients) {
  const Parameters expected = golden.tensors("grads");
  double worst = 0;
  std::string where = golden.checkpoint.layout.front().name;
  for (size_t i = 0; i < gradients.size(); ++i) {
    double furthest = 0;
    for_each_difference(gradients[i], expected[i], [&](double d, size_t) { furthest = std::max(furthest, d); });
    const double largest = mx::max(mx::abs(expected[i])).item<float>();
    const double ratio = furthest == 0 ? 0 : furthest / largest;
    if (ratio <= worst) continue;
    worst = ratio;
    where = golden.checkpoint.layout[i].name;
  }
  return within("gradients", worst, 1e-4, fmt::format("of the largest entry, {}", where));
}

// The layer-wise pass, in blocks of every kind of size: whole, single, ones that do not divide the length; with all
// kept and nothing. The worst of loss and gradients over all of them.
PartResult check_layerwise(const GoldenCase& golden, const Decoder& decoder, const Parameters& parameters,
                           const Batch& batch) {
  const int64_t length = golden.length, vocab = decoder.shape().vocab, layers = decoder.shape().layers;
  const std::vector<StepBlocks> cuts = {{length, length, batch.target_count, vocab, layers, 0},
                                        {length - 1, length - 1, batch.target_count - 1, vocab - 1, 0, layers},
                                        {1, 1, 1, vocab, 1, 0},
                                        {7, 5, 3, vocab / 3, 0, 0},
                                        {16, 11, 64, 10, 0, 1}};
  PartResult worst = within("gradients layer by layer", -1, 1e-4);
  for (const StepBlocks& cut : cuts) {
    LayerwisePass pass(decoder, parameters, all_of(decoder), batch, cut);
    const double count = static_cast<double>(batch.target_count), loss = pass.forward() / count;
    std::vector<std::vector<mx::array>> rows(parameters.size());
    pass.backward([&](const Piece& piece, const std::vector<mx::array>& gradients) {
      for (size_t i = 0; i < piece.rows.size(); ++i) rows[piece.rows[i].tensor].push_back(gradients[i]);
    });
    Parameters gradients;
    for (const auto& parts : rows) {
      gradients.push_back(mx::concatenate(parts, 0) * mx::array(static_cast<float>(1 / count)));
    }
    PartResult result = check_gradients(golden, gradients);
    // The loss has a tolerance of its own, a tenth.
    result.worst = std::max(result.worst, 10 * relative(loss, golden.loss));
    if (result.worst <= worst.worst) continue;
    worst = within(worst.part, result.worst, 1e-4,
                   fmt::format("{}; of {} cuts, {} queries, {} tokens, {} logits, {} rows", result.note, cuts.size(),
                               cut.queries, cut.tokens, cut.logits, cut.vocab_rows));
  }
  return worst;
}

PartResult check_sgd_weights(const GoldenCase& golden, const Parameters& weights) {
  const Parameters expected = golden.tensors("after-sgd");
  double worst = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for_each_difference(weights[i], expected[i], [&](double d, size_t) { worst = std::max(worst, d); });
  }
  return within("weights after sgd", worst, 1e-5, "absolute");
}

// The sign of a tiny gradient decides a whole step of Adam's, so a few entries may be further off.
PartResult check_adamw_weights(const GoldenCase& golden, const Parameters& weights) {
  const Parameters expected = golden.tensors("after-adamw");
  double worst = 0, entries = 0, close = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for_each_difference(weights[i], expected[i], [&](double d, size_t) {
      worst = std::max(worst, d);
      close += d <= 1e-5;
      ++entries;
    });
  }
  const double share = close / entries;
  PartResult result = within("weights after adamw", worst, 2e-3,
                             fmt::format("absolute, {:.4f} % within 1e-5 (at least 99.9 %)", 100 * share));
  result.ok = result.ok && share >= 0.999;
  return result;
}

// Trains as the run says; `weights` become what it leaves.
PartResult check_run(const GoldenRun& run, const Decoder& decoder, const Batch& batch, Parameters& weights) {
  Optimizer optimizer(run.optimizer, decoder.layout(), all_of(decoder));
  double worst = 0;
  int where = 0;
  for (int step = 0; step <= run.steps; ++step) {
    LossAndGradients now = mean_loss_and_gradients(decoder, weights, batch);
    const double distance = relative(now.loss.item<float>(), run.losses[static_cast<size_t>(step)]);
    if (distance > worst) {
      worst = distance;
      where = step;
    }
    if (step == run.steps) break;
    const double factor = run.max_norm == 0 ? 1.0 : clip_factor(global_norm(now.gradients), run.max_norm);
    optimizer.begin_step(run.learning_rate);
    for (size_t i = 0; i < weights.size(); ++i) {
      optimizer.update(i, weights[i], now.gradients[i], static_cast<float>(factor));
    }
  }
  return within("losses along " + run.name, worst, 1e-4, fmt::format("relative, after {} steps", where));
}

PartResult check_greedy(const GoldenCase& golden, const Decoder& decoder, const Parameters& parameters) {
  GenerateOptions options;
  options.max_tokens = static_cast<int>(golden.continuation.size());
  const std::vector<int32_t> tokens = generate(decoder, parameters, golden.prompt, options);
  double different = 0;
  for (size_t i = 0; i < golden.continuation.size(); ++i) different += tokens.at(i) != golden.continuation[i];
  return within("greedy", different, 0, fmt::format("of {} tokens differ", golden.continuation.size()));
}

}  // namespace

std::vector<PartResult> run_parts(const GoldenCase& golden) {
  const Decoder decoder(golden.checkpoint.shape);
  const Parameters parameters = cast(golden.checkpoint.tensors, mx::float32);
  const Batch batch = to_batch(golden);

  std::vector<PartResult> results;
  results.push_back(check_logits(golden, decoder, parameters, batch));
  const LossAndGradients mean = mean_loss_and_gradients(decoder, parameters, batch);
  mx::array value = summed_loss(decoder, parameters, batch);
  const double validation = value.item<float>() / static_cast<double>(batch.target_count);
  results.push_back(within("loss",
                           std::max(relative(mean.loss.item<float>(), golden.loss), relative(validation, golden.loss)),
                           1e-5, "relative"));
  results.push_back(check_gradients(golden, mean.gradients));
  results.push_back(check_layerwise(golden, decoder, parameters, batch));
  results.push_back(within("gradient norm", relative(global_norm(mean.gradients), golden.grad_norm), 1e-4, "relative"));
  for (const GoldenRun& run : golden.runs) {
    Parameters weights = parameters;
    results.push_back(check_run(run, decoder, batch, weights));
    if (run.name == "sgd") results.push_back(check_sgd_weights(golden, weights));
    if (run.name == "adamw") results.push_back(check_adamw_weights(golden, weights));
  }
  results.push_back(check_greedy(golden, decoder, parameters));
  return results;
}

}  // namespace trunkline::conform
