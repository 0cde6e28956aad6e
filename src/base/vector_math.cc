#include "base/vector_math.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "base/vector_math.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// highway.h comes first.
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>

HWY_BEFORE_NAMESPACE();
namespace trunkline {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Tag = hn::ScalableTag<float>;
using Floats = hn::Vec<Tag>;

constexpr float kLargest = 3.40282347e38f;

// Calls whole(i) for all whole vectors, then rest(i) for each element that is left over.
template <typename Whole, typename Rest>
HWY_INLINE void for_vectors(size_t begin, size_t end, const Whole& whole, const Rest& rest) {
  const size_t lanes = hn::Lanes(Tag());
  size_t i = begin;
  for (; i + lanes <= end; i += lanes) whole(i);
  for (; i < end; ++i) rest(i);
}

// Sums are made in f32 over blocks and in f64 over those: a vocabulary's worth of f32 additions would lose digits.
constexpr size_t kBlock = 2048;

HWY_INLINE float exp_of(float x) {
  return hn::GetLane(hn::Exp(hn::CappedTag<float, 1>(), hn::Set(hn::CappedTag<float, 1>(), x)));
}

// 1 / (1 + exp(-x)). Highway's exp ends at 104, where the result has been 0 for long.
HWY_INLINE Floats sigmoid(Floats x) {
  const Tag tag;
  const auto power = hn::Exp(tag, hn::Min(hn::Neg(x), hn::Set(tag, 88.0f)));
  return hn::Div(hn::Set(tag, 1.0f), hn::Add(hn::Set(tag, 1.0f), power));
}
HWY_INLINE float sigmoid(float x) { return 1.0f / (1.0f + exp_of(std::min(-x, 88.0f))); }

float softmax_target(const float* in, float* out, size_t count, float scale) {
  const Tag tag;
  // x * 0 is 0 for every number and NaN for what is none; added to the sum, it makes the whole row NaN. (The maximum
  // and exp would lose it.)
  auto highest = hn::Set(tag, -kLargest), odd = hn::Zero(tag);
  float highest_rest = -kLargest, odd_rest = 0;
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto x = hn::LoadU(tag, in + i);
        highest = hn::Max(highest, x);
        odd = hn::MulAdd(x, hn::Zero(tag), odd);
      },
      [&](size_t i) HWY_ATTR {
        highest_rest = std::max(highest_rest, in[i]);
        odd_rest += in[i] * 0.0f;
      });
  const float top = std::max(highest_rest, hn::GetLane(hn::MaxOfLanes(tag, highest))) * scale;

  double sum = hn::GetLane(hn::SumOfLanes(tag, odd)) + odd_rest;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    auto part = hn::Zero(tag);
    float part_rest = 0;
    for_vectors(
        begin, std::min(count, begin + kBlock),
        [&](size_t i) HWY_ATTR {
          const auto e = hn::Exp(tag, hn::MulSub(hn::LoadU(tag, in + i), hn::Set(tag, scale), hn::Set(tag, top)));
          part = hn::Add(part, e);
          hn::StoreU(e, tag, out + i);
        },
        [&](size_t i) HWY_ATTR {
          out[i] = exp_of(in[i] * scale - top);
          part_rest += out[i];
        });
    sum += hn::GetLane(hn::SumOfLanes(tag, part)) + part_rest;
  }
  const float inverse = static_cast<float>(1.0 / sum);
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR { hn::StoreU(hn::Mul(hn::LoadU(tag, out + i), hn::Set(tag, inverse)), tag, out + i); },
      [&](size_t i) HWY_ATTR { out[i] *= inverse; });
  return static_cast<float>(top + std::log(sum));
}

void softmax_gradient_target(const float* p, const float* dp, float* out, size_t count, float scale) {
  const Tag tag;
  double sum = 0;
  for (size_t begin = 0; begin < count; begin += kBlock) {
    auto part = hn::Zero(tag);
    float part_rest = 0;
    for_vectors(
        begin, std::min(count, begin + kBlock),
        [&](size_t i) HWY_ATTR { part = hn::MulAdd(hn::LoadU(tag, p + i), hn::LoadU(tag, dp + i), part); },
        [&](size_t i) HWY_ATTR { part_rest += p[i] * dp[i]; });
    sum += hn::GetLane(hn::SumOfLanes(tag, part)) + part_rest;
  }
  const auto total = static_cast<float>(sum);
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto scaled = hn::Mul(hn::LoadU(tag, p + i), hn::Set(tag, scale));
        hn::StoreU(hn::Mul(scaled, hn::Sub(hn::LoadU(tag, dp + i), hn::Set(tag, total))), tag, out + i);
      },
      [&](size_t i) HWY_ATTR { out[i] = p[i] * scale * (dp[i] - total); });
}

void swiglu_target(const float* gate, const float* up, float* out, size_t count) {
  const Tag tag;
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto g = hn::LoadU(tag, gate + i);
        hn::StoreU(hn::Mul(hn::Mul(g, sigmoid(g)), hn::LoadU(tag, up + i)), tag, out + i);
      },
      [&](size_t i) HWY_ATTR { out[i] = gate[i] * sigmoid(gate[i]) * up[i]; });
}

void swiglu_gradients_target(const float* gate, const float* up, const float* d, float* d_gate, float* d_up,
                             size_t count) {
  const Tag tag;
  const auto one = hn::Set(tag, 1.0f);
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto g = hn::LoadU(tag, gate + i), u = hn::LoadU(tag, up + i), cotangent = hn::LoadU(tag, d + i);
        const auto s = sigmoid(g);
        const auto slope = hn::Mul(s, hn::MulAdd(g, hn::Sub(one, s), one));
        hn::StoreU(hn::Mul(hn::Mul(cotangent, u), slope), tag, d_gate + i);
        hn::StoreU(hn::Mul(hn::Mul(cotangent, g), s), tag, d_up + i);
      },
      [&](size_t i) HWY_ATTR {
        const float g = gate[i], u = up[i], cotangent = d[i], s = sigmoid(g);
        d_gate[i] = cotangent * u * (s * (g * (1.0f - s) + 1.0f));
        d_up[i] = cotangent * g * s;
      });
}

// 1 / sqrt(mean(x^2) + epsilon)
HWY_INLINE float inverse_rms(const float* x, size_t count, float epsilon) {
  const Tag tag;
  auto squares = hn::Zero(tag);
  float squares_rest = 0;
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto value = hn::LoadU(tag, x + i);
        squares = hn::MulAdd(value, value, squares);
      },
      [&](size_t i) HWY_ATTR { squares_rest += x[i] * x[i]; });
  const float sum = hn::GetLane(hn::SumOfLanes(tag, squares)) + squares_rest;
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + epsilon);
}

void rms_norm_target(const float* x, const float* weight, float* out, size_t count, float epsilon) {
  const Tag tag;
  const float inverse = inverse_rms(x, count, epsilon);
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto normed = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, inverse));
        hn::StoreU(hn::Mul(normed, hn::LoadU(tag, weight + i)), tag, out + i);
      },
      [&](size_t i) HWY_ATTR { out[i] = x[i] * inverse * weight[i]; });
}

// With r the inverse root, n = r x and g = d weight: r (g - n mean(g n)) for x, d n for the weight.
void rms_norm_gradients_target(const float* x, const float* weight, const float* d, float* d_x, float* d_weight,
                               size_t count, float epsilon) {
  const Tag tag;
  const float inverse = inverse_rms(x, count, epsilon);
  auto sums = hn::Zero(tag);
  float sums_rest = 0;
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto owed = hn::Mul(hn::LoadU(tag, d + i), hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, inverse)));
        sums = hn::MulAdd(owed, hn::LoadU(tag, weight + i), sums);
        hn::StoreU(hn::Add(hn::LoadU(tag, d_weight + i), owed), tag, d_weight + i);
      },
      [&](size_t i) HWY_ATTR {
        const float owed = d[i] * (x[i] * inverse);
        sums_rest += owed * weight[i];
        d_weight[i] += owed;
      });
  const float mean = (hn::GetLane(hn::SumOfLanes(tag, sums)) + sums_rest) / static_cast<float>(count);
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto normed = hn::Mul(hn::LoadU(tag, x + i), hn::Set(tag, inverse));
        const auto scaled = hn::Mul(hn::LoadU(tag, d + i), hn::LoadU(tag, weight + i));
        hn::StoreU(hn::Mul(hn::NegMulAdd(normed, hn::Set(tag, mean), scaled), hn::Set(tag, inverse)), tag, d_x + i);
      },
      [&](size_t i) HWY_ATTR { d_x[i] = (d[i] * weight[i] - x[i] * inverse * mean) * inverse; });
}

void rotate_target(const float* x, const float* cosine, const float* sine, float* out, size_t half, bool back) {
  const Tag tag;
  const float sign = back ? -1.0f : 1.0f;
  for_vectors(
      0, half,
      [&](size_t i) HWY_ATTR {
        const auto a = hn::LoadU(tag, x + i), b = hn::LoadU(tag, x + half + i), c = hn::LoadU(tag, cosine + i);
        const auto s = hn::Mul(hn::LoadU(tag, sine + i), hn::Set(tag, sign));
        hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), tag, out + i);
        hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), tag, out + half + i);
      },
      [&](size_t i) HWY_ATTR {
        const float a = x[i], b = x[half + i], c = cosine[i], s = sine[i] * sign;
        out[i] = a * c - b * s;
        out[half + i] = b * c + a * s;
      });
}

// Without MulAdd, which rounds once or twice as the processor has it.
void adamw_step_target(float* weights, float* m, float* v, const float* gradient, size_t count,
                       const AdamwFactors& factors) {
  const Tag tag;
  for_vectors(
      0, count,
      [&](size_t i) HWY_ATTR {
        const auto times = [&](Floats x, float factor) HWY_ATTR { return hn::Mul(x, hn::Set(tag, factor)); };
        const auto g = times(hn::LoadU(tag, gradient + i), factors.scale);
        const auto mean = hn::Add(times(hn::LoadU(tag, m + i), factors.beta1), times(g, factors.rest1));
        const auto squares = hn::Add(times(hn::LoadU(tag, v + i), factors.beta2), times(hn::Mul(g, g), factors.rest2));
        const auto divisor = hn::Add(times(hn::Sqrt(squares), factors.root), hn::Set(tag, factors.epsilon));
        const auto kept = times(hn::LoadU(tag, weights + i), factors.keep);
        hn::StoreU(mean, tag, m + i);
        hn::StoreU(squares, tag, v + i);
        hn::StoreU(hn::Sub(kept, hn::Div(times(mean, factors.rate), divisor)), tag, weights + i);
      },
      [&](size_t i) HWY_ATTR {
        const float g = gradient[i] * factors.scale;
        m[i] = m[i] * factors.beta1 + g * factors.rest1;
        v[i] = v[i] * factors.beta2 + g * g * factors.rest2;
        weights[i] =
            weights[i] * factors.keep - m[i] * factors.rate / (std::sqrt(v[i]) * factors.root + factors.epsilon);
      });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace trunkline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace trunkline {
HWY_EXPORT(softmax_target);
HWY_EXPORT(softmax_gradient_target);
HWY_EXPORT(swiglu_target);
HWY_EXPORT(swiglu_gradients_target);
HWY_EXPORT(rms_norm_target);
HWY_EXPORT(rms_norm_gradients_target);
HWY_EXPORT(rotate_target);
HWY_EXPORT(adamw_step_target);

float softmax(const float* in, float* out, size_t count, float scale) {
  return HWY_DYNAMIC_DISPATCH(softmax_target)(in, out, count, scale);
}

void softmax_gradient(const float* p, const float* dp, float* out, size_t count, float scale) {
  HWY_DYNAMIC_DISPATCH(softmax_gradient_target)(p, dp, out, count, scale);
}

void swiglu(const float* gate, const float* up, float* out, size_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_target)(gate, up, out, count);
}

void swiglu_gradients(const float* gate, const float* up, const float* d, float* d_gate, float* d_up, size_t count) {
  HWY_DYNAMIC_DISPATCH(swiglu_gradients_target)(gate, up, d, d_gate, d_up, count);
}

void rms_norm(const float* x, const float* weight, float* out, size_t count, float epsilon) {
  HWY_DYNAMIC_DISPATCH(rms_norm_target)(x, weight, out, count, epsilon);
}

void rms_norm_gradients(const float* x, const float* weight, const float* d, float* d_x, float* d_weight, size_t count,
                        float epsilon) {
  HWY_DYNAMIC_DISPATCH(rms_norm_gradients_target)(x, weight, d, d_x, d_weight, count, epsilon);
}

void rotate(const float* x, const float* cosine, const float* sine, float* out, size_t half, bool back) {
  HWY_DYNAMIC_DISPATCH(rotate_target)(x, cosine, sine, out, half, back);
}

void adamw_step(float* weights, float* m, float* v, const float* gradient, size_t count, const AdamwFactors& factors) {
  HWY_DYNAMIC_DISPATCH(adamw_step_target)(weights, m, v, gradient, count, factors);
}

}  // namespace trunkline
#endif
