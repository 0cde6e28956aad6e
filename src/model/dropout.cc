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

Dropout Dropout::part(int begin, int end) const { return {rate_, trunkline::part(keys_, 1, begin, end)}; }

Dropout Dropout::at(const mx::array& places) const {
  return {rate_, mx::expand_dims(mx::take(mx::reshape(keys_, {-1}), places, 0), 0)};
}

mx::array Dropout::apply(const mx::array& x, uint32_t module) const {
  mx::Shape shape = x.shape();
  shape.back() = 1;
  const mx::array keys = mixed(mx::bitwise_xor(mx::reshape(keys_, shape), constant(trunkline::mixed(module + 1))));
  const mx::array features = mixed(mx::arange(x.shape(-1), mx::uint32));
  const mx::array drawn = mixed(mx::bitwise_xor(keys, features));
  const auto threshold = static_cast<uint32_t>(std::llround(std::ldexp(rate_, 32)));
  const mx::array kept = mx::greater_equal(drawn, constant(threshold));
  const mx::array scale(static_cast<float>(1.0 / (1.0 - rate_)), x.dtype());
  return mx::where(kept, mx::multiply(x, scale), mx::array(0.0f, x.dtype()));
}

}  // namespace trunkline
