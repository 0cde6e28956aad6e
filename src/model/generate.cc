#include "model/generate.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "base/random.h"

namespace trunkline {
namespace {

// Draws from softmax(logits / temperature), or takes the largest (the first of equals) at temperature 0.
int32_t choose(const std::vector<float>& logits, double temperature, Random& random) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature == 0) return static_cast<int32_t>(largest - logits.begin());
  std::vector<double> cumulative;
  cumulative.reserve(logits.size());
  double sum = 0;
  for (float logit : logits) cumulative.push_back(sum += std::exp((logit - *largest) / temperature));
  const double drawn = random.uniform() * sum;
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), drawn);
  return static_cast<int32_t>(std::min(chosen, cumulative.end() - 1) - cumulative.begin());
}

}  // namespace

std::vector<int32_t> generate(const Decoder& decoder, const Parameters& parameters, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int32_t)>& on_token) {
  if (prompt.empty()) fail(ErrorKind::input, "the prompt is empty: there is nothing to continue");
  if (!(options.temperature >= 0)) fail(ErrorKind::input, "the temperature is {}, not 0 or more", options.temperature);
  for (int32_t id : prompt) {
    if (id < 0 || id >= decoder.shape().vocab) {
      fail(ErrorKind::input, "token {} of the prompt is beyond the model's {} embeddings", id, decoder.shape().vocab);
    }
  }

  Random random(options.seed);
  KeyValueCache cache;
  std::vector<int32_t> ids = prompt;  // the tokens to run next: the prompt, then one at a time
  std::vector<int32_t> generated;
  while (static_cast<int>(generated.size()) < options.max_tokens) {
    const int length = static_cast<int>(ids.size());
    const mx::array hidden = decoder.hidden(parameters, mx::array(ids.begin(), {1, length}, mx::int32), &cache);
    const mx::array last = mx::slice(hidden, {0, length - 1, 0}, hidden.shape());
    mx::array logits = mx::astype(decoder.head(parameters, mx::reshape(last, {1, -1})), mx::float32);
    logits.eval();
    const auto* data = logits.data<float>();
    const std::vector<float> values(data, data + logits.size());
    if (!std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) {
      fail(ErrorKind::numeric, "the model's logits are not finite after {} tokens", cache.length);
    }
    const int32_t token = choose(values, options.temperature, random);
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    generated.push_back(token);
    if (on_token && !on_token(token)) break;
    ids = {token};
  }
  return generated;
}

}  // namespace trunkline
