#include "train/random_model.h"

#include <vector>

namespace trunkline {

Parameters random_weights(const Decoder& decoder, mx::Dtype dtype, uint64_t seed) {
  mx::random::seed(seed);
  Parameters parameters;
  for (const TensorShape& tensor : decoder.layout()) {
    const mx::Shape shape(tensor.dims.begin(), tensor.dims.end());
    const mx::array value =
        shape.size() == 1 ? mx::ones(shape) : mx::multiply(mx::random::normal(shape), mx::array(0.02f));
    parameters.push_back(mx::astype(value, dtype));
    parameters.back().eval();
  }
  return parameters;
}

Batch random_batch(int rows, int tokens, int64_t vocab, uint64_t seed) {
  mx::random::seed(seed);
  std::vector<int32_t> positions;
  for (int row = 0; row < rows; ++row) {
    for (int t = 0; t + 1 < tokens; ++t) positions.push_back(row * tokens + t);
  }
  const int count = static_cast<int>(positions.size()), top = static_cast<int>(vocab);
  mx::array ids = mx::random::randint(0, top, {rows, tokens}, mx::int32);
  mx::array targets = mx::random::randint(0, top, {count}, mx::int32);
  mx::eval(ids, targets);
  return {.ids = ids,
          .positions = mx::array(positions.begin(), {count}, mx::int32),
          .targets = targets,
          .target_count = count,
          .places = mx::arange(tokens, mx::int32)};
}

}  // namespace trunkline
