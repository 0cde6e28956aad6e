// Text from a model, one token at a time: plain and correct rather than fast.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/decoder.h"

namespace trunkline {

struct GenerateOptions {
  int max_tokens = 256;
  double temperature = 0.0;  // 0: greedy
  uint64_t seed = 0;
  std::vector<int64_t> stop;  // tokens that end the text; the token itself is not returned
};

// Continues `prompt` (at least one token). `on_token` sees each token as it comes and may return false to stop.
std::vector<int32_t> generate(const Decoder& decoder, const Parameters& parameters, const std::vector<int32_t>& prompt,
                              const GenerateOptions& options, const std::function<bool(int32_t)>& on_token = {});

}  // namespace trunkline
