#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numbers>

#include "base/vector_math.h"
#include "model/cpu_primitive.h"
#include "model/fused.h"
#include "model/parts.h"

namespace trunkline {
namespace {

using Type = RopeShape::Type;

constexpr double kTurn = 2 * std::numbers::pi;

// Long waves are stretched by `factor`, short ones kept, those between interpolated.
void scale_llama3(const RopeShape& shape, std::vector<float>& inverse) {
  const double longest = shape.original_max_positions / shape.low_freq_factor;
  const double shortest = shape.original_max_positions / shape.high_freq_factor;
  for (float& frequency : inverse) {
    const auto wave = static_cast<float>(kTurn) / frequency;
    if (wave < shortest) continue;
    if (wave > longest) {
      frequency /= static_cast<float>(shape.factor);
      continue;
    }
    const auto smooth = static_cast<float>((shape.original_max_positions / wave - shape.low_freq_factor) /
                                           (shape.high_freq_factor - shape.low_freq_factor));
    frequency = (1 - smooth) * frequency / static_cast<float>(shape.factor) + smooth * frequency;
  }
}

// Pairs that turn often within the original context are kept, those that turn seldom stretched, with a ramp between
// (arXiv 2309.00071, section 3.2).
void scale_yarn(const RopeShape& shape, int head_dim, std::vector<float>& inverse) {
  const auto pair_that_turns = [&](double times) {
    return head_dim * std::log(shape.original_max_positions / (times * kTurn)) / (2 * std::log(shape.theta));
  };
  double low = pair_that_turns(shape.beta_fast);
  double high = pair_that_turns(shape.beta_slow);
  if (shape.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inverse.size(); ++i) {
    const auto ramp = static_cast<float>((static_cast<double>(i) - low) / (high - low));
    const float kept = 1 - std::clamp(ramp, 0.0f, 1.0f);
    const float stretched = 1 / (static_cast<float>(shape.factor) * (1 / inverse[i]));
    inverse[i] = stretched * (1 - kept) + inverse[i] * kept;
  }
}

}  // namespace

std::vector<float> inverse_frequencies(const RopeShape& shape, int head_dim) {
  std::vector<float> inverse;
  for (int i = 0; i < head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    inverse.push_back(1 / std::pow(static_cast<float>(shape.theta), exponent));
  }
  switch (shape.type) {
    case Type::standard: break;
    case Type::linear:
      for (float& frequency : inverse) frequency /= static_cast<float>(shape.factor);
      break;
    case Type::llama3: scale_llama3(shape, inverse); break;
    case Type::yarn: scale_yarn(shape, head_dim, inverse); break;
  }
  return inverse;
}

double attention_factor(const RopeShape& shape) {
  if (shape.type != Type::yarn) return 1.0;
  if (shape.attention_factor) return *shape.attention_factor;
  const auto magnitude = [&](double scale) {
    return shape.factor <= 1 ? 1.0 : 0.1 * scale * std::log(shape.factor) + 1.0;
  };
  if (shape.mscale && shape.mscale_all_dim) return magnitude(*shape.mscale) / magnitude(*shape.mscale_all_dim);
  return magnitude(1.0);
}

Rope::Rope(const RopeShape& shape, int head_dim)
    : frequencies_(inverse_frequencies(shape, head_dim).begin(), {head_dim / 2}),
      factor_(static_cast<float>(attention_factor(shape))) {}

RopeTable Rope::table(const mx::array& positions, mx::Dtype dtype) const {
  mx::array angles = mx::expand_dims(mx::astype(positions, mx::float32), -1) * frequencies_;
  if (positions.ndim() == 2) angles = mx::expand_dims(angles, 1);
  return {mx::astype(mx::cos(angles) * factor_, dtype), mx::astype(mx::sin(angles) * factor_, dtype)};
}

RopeTable RopeTable::part(int begin, int end) const {
  const int axis = static_cast<int>(cosine.ndim()) - 2;
  return {trunkline::part(cosine, axis, begin, end), trunkline::part(sine, axis, begin, end)};
}

namespace {

using Arrays = std::vector<mx::array>;

// {a, b, cosine, sine}
Arrays turned(const Arrays& in) { return {in[0] * in[2] - in[1] * in[3], in[1] * in[2] + in[0] * in[3]}; }
Arrays turned_back(const Arrays& in) { return {in[0] * in[2] + in[1] * in[3], in[1] * in[2] - in[0] * in[3]}; }

// For f32 on the CPU: x [B, H, L, D] in any layout, row by row. What is turned lies in row order; what is turned back
// lies as projections do, [B, L, H, D].
class Rotation : public CpuPrimitive {
 public:
  Rotation(mx::Stream stream, bool back) : CpuPrimitive(stream), back_(back) {}
  const char* name() const override { return "Rotation"; }

  // {x, cosine, sine}; the latter are [L, D/2] or [B, 1, L, D/2], their last axis in one piece.
  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    const mx::array &x = inputs[0], &table = inputs[1];
    mx::array& out = outputs[0];
    const int64_t heads = x.shape(1), tokens = x.shape(2), width = x.shape(3);
    const mx::Strides strides = back_ ? mx::Strides{tokens * heads * width, width, heads * width, 1}
                                      : mx::Strides{heads * tokens * width, tokens * width, width, 1};
    const bool in_order = !back_ || heads == 1 || tokens == 1;
    out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), strides, {true, in_order, out.size() == 1});
    const int64_t row = table.ndim() == 4 ? table.shape(2) * table.shape(3) : 0;
    run([x = x.data<float>(), from = x.strides(), shape = x.shape(), width, cosine = table.data<float>(),
         sine = inputs[2].data<float>(), row, out = out.data<float>(), to = strides, back = back_] {
      std::vector<float> gathered(static_cast<size_t>(width));
      for (int64_t b = 0; b < shape[0]; ++b) {
        for (int64_t h = 0; h < shape[1]; ++h) {
          for (int64_t l = 0; l < shape[2]; ++l) {
            const float* in = x + b * from[0] + h * from[1] + l * from[2];
            if (from[3] != 1) {
              for (int64_t i = 0; i < width; ++i) gathered[static_cast<size_t>(i)] = in[i * from[3]];
              in = gathered.data();
            }
            const int64_t angles = b * row + l * (width / 2);
            trunkline::rotate(in, cosine + angles, sine + angles, out + b * to[0] + h * to[1] + l * to[2],
                              static_cast<size_t>(width / 2), back);
          }
        }
      }
    });
  }

  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    Arrays wanted;
    for (const int argument : argnums) {
      wanted.push_back(argument == 0 ? turned_by(cotangents[0], primals[1], primals[2], !back_)
                                     : mx::zeros_like(primals[static_cast<size_t>(argument)]));
    }
    return wanted;
  }

  static mx::array turned_by(const mx::array& x, const mx::array& cosine, const mx::array& sine, bool back) {
    return mx::array(x.shape(), mx::float32, std::make_shared<Rotation>(mx::to_stream({}), back),
                     {x, mx::contiguous(cosine), mx::contiguous(sine)});
  }

 private:
  bool back_;
};

}  // namespace

mx::array RopeTable::rotate_back(const mx::array& d) const {
  if (fused_here(d)) return Rotation::turned_by(d, cosine, sine, true);
  const Arrays halves = mx::split(d, 2, -1);
  return mx::concatenate(one_pass(turned_back, {halves[0], halves[1], cosine, sine}), -1);
}

mx::array RopeTable::rotate(const mx::array& x) const {
  if (fused_here(x)) return Rotation::turned_by(x, cosine, sine, false);
  const auto value = [](const Arrays& in) { return one_pass(turned, in); };
  const auto gradients = [](const Arrays& in, const Arrays& d, const Arrays&) {
    const Arrays back = one_pass(turned_back, {d[0], d[1], in[2], in[3]});
    return Arrays{back[0], back[1], mx::zeros_like(in[2]), mx::zeros_like(in[3])};
  };
  const Arrays halves = mx::split(x, 2, -1);
  return mx::concatenate(mx::custom_vjp(value, gradients)({halves[0], halves[1], cosine, sine}), -1);
}

}  // namespace trunkline
