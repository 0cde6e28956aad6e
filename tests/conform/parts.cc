#include "conform/parts.h"

#include <algorithm>

#include "base/fail.h"
#include "conform/checks.h"
#include "model/decoder.h"
#include "model/generate.h"
#include "train/clip.h"
#include "train/loss.h"

namespace trunkline::conform {
namespace {

PartResult check_sgd_weights(const GoldenCase& golden, const Parameters& weights) {
  const Parameters expected = golden.tensors("after-sgd");
  double worst = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    for_each_difference(weights[i], expected[i], [&](double d, size_t) { worst = std::max(worst, d); });
  }
  return within("weights after sgd", worst, 1e-5, "absolute");
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
  const Trained all = Trained::all(parameters.size());
  const Parameters expected = golden.tensors("grads");

  std::vector<PartResult> results;
  results.push_back(check_logits("logits", golden, decoder.logits(parameters, batch.ids), golden.logits));
  const LossAndGradients mean = mean_loss_and_gradients(decoder, parameters, all, batch);
  results.push_back(check_loss(decoder, parameters, batch, mx::array(mean.loss).item<float>(), golden.loss));
  results.push_back(check_gradients(decoder, all, mean.gradients, expected));
  results.push_back(check_layerwise(decoder, parameters, all, batch, golden.loss, expected));
  results.push_back(within("gradient norm", relative(global_norm(mean.gradients), golden.grad_norm), 1e-4, "relative"));
  for (const GoldenRun& run : golden.runs) {
    Parameters weights = parameters;
    results.push_back(check_run(run, decoder, all, batch, weights));
    if (run.name == "sgd") results.push_back(check_sgd_weights(golden, weights));
    if (run.name == "adamw") {
      results.push_back(check_adamw_weights("weights after adamw", weights, golden.tensors("after-adamw")));
    }
  }
  results.push_back(check_greedy(golden, decoder, parameters));
  return results;
}

}  // namespace trunkline::conform
