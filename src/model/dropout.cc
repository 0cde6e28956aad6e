#include "model/dropout.h"

#include <cmath>

#include "model/parts.h"

namespace trunkline {
namespace {

mx::array constant(uint32_t value) { return mx::array(value, mx::uint32); }

mx::array mixed(const mx::array& keys) {
  const auto fold = [](const mx::array& x, uint32_t bits) {
    return mx::bitwise_xor(x, mx::right_shift(x, constant(bits)));
  };
  const mx::array once = mx::multiply(fold(keys, 16), constant(0x21f0aaadu));
  const mx::array twice = mx::multiply(fold(once, 15), constant(0x735a2d97u));
  return fold(twice, 15);
}

}  // namespace

mx::array Dropout::apply(const mx::array& x, uint32_t module, int first) const {
  const mx::array tokens = part(keys_, 1, first, first + x.shape(1));
  const mx::array keys = mixed(mx::bitwise_xor(tokens, constant(trunkline::mixed(module + 1))));
  const mx::array features = mixed(mx::arange(x.shape(2), mx::uint32));
  const mx::array drawn = mixed(mx::bitwise_xor(mx::expand_dims(keys, 2), features));
  const auto threshold = static_cast<uint32_t>(std::lround(std::ldexp(rate_, 32)));
  const mx::array kept = mx::greater_equal(drawn, constant(threshold));
  const mx::array scale(static_cast<float>(1.0 / (1.0 - rate_)), x.dtype());
  return mx::where(kept, mx::multiply(x, scale), mx::array(0.0f, x.dtype()));
}

}  // namespace trunkline
