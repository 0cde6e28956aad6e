#include "model/fused.h"

#include <mlx/backend/cuda/cuda.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "base/vector_math.h"
#include "model/cpu_primitive.h"

namespace trunkline {

bool fused_here(const mx::array& x) {
  return x.dtype() == mx::float32 && mx::default_device() == mx::Device(mx::Device::cpu);
}

namespace {

// softmax over rows of `columns`, of which a row sees a part only if the rows are queries: `queries` of them stand at
// the end of `columns` positions in causal order, group after group, `groups` to a sequence. `first` is empty or has
// the first position that each query of each sequence sees.
struct Rows {
  size_t columns = 0;
  size_t queries = 0;  // 0: every row sees all
  size_t groups = 0;
  float scale = 1;
  std::vector<int32_t> first;

  size_t begin(size_t row) const {
    if (first.empty()) return 0;
    return static_cast<size_t>(first[row / queries / groups * queries + row % queries]);
  }
  size_t end(size_t row) const { return queries == 0 ? columns : columns - queries + row % queries + 1; }
  // Zeros where the row sees nothing.
  void clear(float* out, size_t row) const {
    std::fill(out, out + begin(row), 0.0f);
    std::fill(out + end(row), out + columns, 0.0f);
  }
};

class SoftmaxGradient : public CpuPrimitive {
 public:
  SoftmaxGradient(mx::Stream stream, Rows rows) : CpuPrimitive(stream), rows_(std::move(rows)) {}
  const char* name() const override { return "SoftmaxGradient"; }

  // {p, dp} -> the gradient of softmax's input
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(inputs[1], outputs[0]);
    run([p = inputs[0].data<float>(), dp = inputs[1].data<float>(), out = outputs[0].data<float>(),
         size = outputs[0].size(), rows = rows_] {
      for (size_t at = 0, row = 0; at < size; at += rows.columns, ++row) {
        const size_t from = at + rows.begin(row);
        softmax_gradient(p + from, dp + from, out + from, at + rows.end(row) - from, rows.scale);
        rows.clear(out + at, row);
      }
    });
  }

 private:
  Rows rows_;
};

class Softmax : public CpuPrimitive {
 public:
  Softmax(mx::Stream stream, Rows rows) : CpuPrimitive(stream), rows_(std::move(rows)) {}
  const char* name() const override { return "Softmax"; }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(inputs[0], outputs[0]);
    run([in = inputs[0].data<float>(), out = outputs[0].data<float>(), size = outputs[0].size(), rows = rows_] {
      for (size_t at = 0, row = 0; at < size; at += rows.columns, ++row) {
        const size_t from = at + rows.begin(row);
        trunkline::softmax(in + from, out + from, at + rows.end(row) - from, rows.scale);
        rows.clear(out + at, row);
      }
    });
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>&, const std::vector<mx::array>& cotangents,
                             const std::vector<int>&, const std::vector<mx::array>& outputs) override {
    return {mx::array(outputs[0].shape(), mx::float32, std::make_shared<SoftmaxGradient>(stream(), rows_),
                      {outputs[0], mx::contiguous(cotangents[0])})};
  }

 private:
  Rows rows_;
};

// Rows' softmax and log(sum(exp)), without a gradient.
class SoftmaxAndLogSums : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  const char* name() const override { return "SoftmaxAndLogSums"; }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(inputs[0], outputs[0]);
    outputs[1].set_data(mx::allocator::malloc(outputs[1].nbytes()));
    run([in = inputs[0].data<float>(), out = outputs[0].data<float>(), sums = outputs[1].data<float>(),
         rows = outputs[1].size(), columns = static_cast<size_t>(outputs[0].shape(-1))] {
      for (size_t row = 0; row < rows; ++row) {
        sums[row] = trunkline::softmax(in + row * columns, out + row * columns, columns, 1.0f);
      }
    });
  }
};

class SwigluGradients : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  const char* name() const override { return "SwigluGradients"; }

  // {gate, up, d} -> {d_gate, d_up}
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(inputs[0], outputs[0]);
    allocate(inputs[1], outputs[1]);
    run([gate = inputs[0].data<float>(), up = inputs[1].data<float>(), d = inputs[2].data<float>(),
         d_gate = outputs[0].data<float>(), d_up = outputs[1].data<float>(),
         size = outputs[0].size()] { trunkline::swiglu_gradients(gate, up, d, d_gate, d_up, size); });
  }
};

class Swiglu : public CpuPrimitive {
 public:
  using CpuPrimitive::CpuPrimitive;
  const char* name() const override { return "Swiglu"; }

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    allocate(inputs[0], outputs[0]);
    run([gate = inputs[0].data<float>(), up = inputs[1].data<float>(), out = outputs[0].data<float>(),
         size = outputs[0].size()] { trunkline::swiglu(gate, up, out, size); });
  }

  std::vector<mx::array> vjp(const std::vector<mx::array>& primals, const std::vector<mx::array>& cotangents,
                             const std::vector<int>& argnums, const std::vector<mx::array>&) override {
    const std::vector<mx::array> both = trunkline::swiglu_gradients(primals[0], primals[1], cotangents[0]);
    std::vector<mx::array> wanted;
    for (int argument : argnums) wanted.push_back(both[static_cast<size_t>(argument)]);
    return wanted;
  }
};

mx::array softmax_rows(const mx::array& x, Rows rows) {
  return mx::array(x.shape(), mx::float32, std::make_shared<Softmax>(mx::to_stream({}), std::move(rows)),
                   {mx::contiguous(x)});
}

Rows causal_rows(const mx::array& scores, float scale, const std::vector<int32_t>& first) {
  const auto queries = static_cast<size_t>(scores.shape(-2)), columns = static_cast<size_t>(scores.shape(-1));
  const size_t groups = scores.size() / columns / queries / static_cast<size_t>(scores.shape(0));
  return {.columns = columns, .queries = queries, .groups = groups, .scale = scale, .first = first};
}

}  // namespace

std::vector<mx::array> one_pass(std::vector<mx::array> (*function)(const std::vector<mx::array>&),
                                const std::vector<mx::array>& inputs, Shapes shapes) {
  if (mx::default_device() == mx::Device::cpu) return function(inputs);
  return mx::compile(function, /* shapeless = */ shapes == Shapes::any)(inputs);
}

namespace {

using Arrays = std::vector<mx::array>;

mx::array in_f32(const mx::array& x) { return mx::astype(x, mx::float32); }

Arrays swiglu_of_parts(const Arrays& in) {
  const mx::array gate = in_f32(in[0]);
  return {mx::astype(gate * mx::sigmoid(gate) * in_f32(in[1]), in[0].dtype())};
}

Arrays exp_of_difference_of_parts(const Arrays& in) { return {mx::exp(mx::subtract(in[0], in[1]))}; }

// {gate, up, d}
Arrays gate_gradient_of_parts(const Arrays& in) {
  const mx::array gate = in_f32(in[0]), s = mx::sigmoid(gate);
  const mx::array d_gate = in_f32(in[2]) * in_f32(in[1]) * s * (mx::array(1.0f) + gate * (mx::array(1.0f) - s));
  return {mx::astype(d_gate, in[0].dtype())};
}

Arrays up_gradient_of_parts(const Arrays& in) {
  const mx::array gate = in_f32(in[0]);
  return {mx::astype(in_f32(in[2]) * gate * mx::sigmoid(gate), in[1].dtype())};
}

// {scores, the queries' own places, the keys', the first key that each sees}
Arrays hide_unseen(const Arrays& in) {
  const mx::array seen = mx::logical_and(mx::less_equal(in[2], in[1]), mx::greater_equal(in[2], in[3]));
  return {mx::where(seen, in[0], mx::array(-std::numeric_limits<float>::infinity(), in[0].dtype()))};
}

// {p, dp, sums, scale}
Arrays softmax_gradient_of_parts(const Arrays& in) {
  return {mx::astype(in_f32(in[0]) * (in_f32(in[1]) - in[2]) * in[3], in[0].dtype())};
}

// The keys [S], the queries' own places [L, 1] among them.
std::pair<mx::array, mx::array> places(int queries, int keys) {
  return {mx::arange(keys, mx::int32), mx::expand_dims(mx::arange(keys - queries, keys, mx::int32), 1)};
}

mx::array first_keys(const mx::Shape& scores, const std::vector<int32_t>& first) {
  mx::Shape shape(scores.size(), 1);
  shape[0] = scores[0];
  shape[shape.size() - 2] = scores[scores.size() - 2];
  return mx::array(first.begin(), shape, mx::int32);
}

// Without what a query does not see. Where that is only what comes after it, all but the last keys are left alone, and
// what is hidden is so by adding to it: MLX then works in the scores' own memory.
mx::array seen_scores(const mx::array& scores, const std::vector<int32_t>& first) {
  const int queries = scores.shape(-2), keys = scores.shape(-1);
  if (!first.empty()) {
    const auto [key, own] = places(queries, keys);
    return one_pass(hide_unseen, {scores, own, key, first_keys(scores.shape(), first)}).front();
  }
  if (queries == 1) return scores;
  const mx::array hidden(-std::numeric_limits<float>::infinity(), scores.dtype()), zero(0.0f, scores.dtype());
  mx::Shape from(scores.ndim(), 0), square = scores.shape();
  from.back() = keys - queries;
  square.back() = queries;
  const mx::array own_keys = mx::where(seen_keys({queries, queries}, {}), zero, hidden);
  return mx::slice_update_add(scores, mx::broadcast_to(own_keys, square), from, scores.shape());
}

}  // namespace

mx::array exp_of_difference(const mx::array& x, const mx::array& y) {
  return one_pass(exp_of_difference_of_parts, {x, y}).front();
}

mx::array swiglu(const mx::array& gate, const mx::array& up) {
  if (fused_here(gate)) {
    return mx::array(gate.shape(), mx::float32, std::make_shared<Swiglu>(mx::to_stream({})),
                     {mx::contiguous(gate), mx::contiguous(up)});
  }
  const auto value = [](const Arrays& in) { return one_pass(swiglu_of_parts, in); };
  const auto gradients = [](const Arrays& in, const Arrays& cotangents, const Arrays&) {
    return swiglu_gradients(in[0], in[1], cotangents[0]);
  };
  return mx::custom_vjp(value, gradients)({gate, up}).front();
}

std::vector<mx::array> swiglu_gradients(const mx::array& gate, const mx::array& up, const mx::array& d) {
  if (!fused_here(gate)) {
    // Each in a pass of its own: what two results share, MLX would write to memory.
    const Arrays in = {gate, up, d};
    return {one_pass(gate_gradient_of_parts, in, Shapes::few).front(), one_pass(up_gradient_of_parts, in).front()};
  }
  return mx::array::make_arrays({gate.shape(), up.shape()}, {mx::float32, mx::float32},
                                std::make_shared<SwigluGradients>(mx::to_stream({})),
                                {mx::contiguous(gate), mx::contiguous(up), mx::contiguous(d)});
}

mx::array add_in_f32(mx::array sum, const mx::array& x) {
  const auto added = [](const Arrays& in) { return Arrays{in[0] + in_f32(in[1])}; };
  return one_pass(added, {std::move(sum), x}).front();
}

mx::array row_softmax(const mx::array& x) {
  if (!fused_here(x)) return mx::softmax(x, -1, /* precise = */ true);
  return softmax_rows(x, {.columns = static_cast<size_t>(x.shape(-1)), .first = {}});
}

std::pair<mx::array, mx::array> row_softmax_and_log_sums(const mx::array& x) {
  if (!fused_here(x)) {
    const mx::array log_sums = mx::logsumexp(x, -1, /* keepdims = */ true);
    return {exp_of_difference(x, log_sums), log_sums};
  }
  mx::Shape rows = x.shape();
  rows.back() = 1;
  const std::vector<mx::array> both =
      mx::array::make_arrays({x.shape(), rows}, {mx::float32, mx::float32},
                             std::make_shared<SoftmaxAndLogSums>(mx::to_stream({})), {mx::contiguous(x)});
  return {both[0], both[1]};
}

mx::array causal_softmax(const mx::array& scores, float scale, const std::vector<int32_t>& first) {
  if (fused_here(scores)) return softmax_rows(scores, causal_rows(scores, scale, first));
  const mx::array scaled = scale == 1.0f ? scores : mx::multiply(scores, mx::array(scale, scores.dtype()));
  return mx::softmax(seen_scores(scaled, first), -1, /* precise = */ true);
}

mx::array causal_softmax_gradient(const mx::array& p, const mx::array& dp, const mx::array& sums, float scale,
                                  const std::vector<int32_t>& first) {
  if (fused_here(p)) {
    return mx::array(p.shape(), mx::float32,
                     std::make_shared<SoftmaxGradient>(mx::to_stream({}), causal_rows(p, scale, first)),
                     {mx::contiguous(p), mx::contiguous(dp)});
  }
  return one_pass(softmax_gradient_of_parts, {p, dp, sums, mx::array(scale)}).front();
}

mx::array seen_keys(const mx::Shape& scores, const std::vector<int32_t>& first) {
  const auto [key, own] = places(scores[scores.size() - 2], scores.back());
  mx::array causal = mx::less_equal(key, own);
  if (first.empty()) return causal;
  return mx::logical_and(causal, mx::greater_equal(key, first_keys(scores, first)));
}

namespace {

// CUDA's TF32 products are faster where the first factor lies along its rows, even with the copy.
mx::array ready_for_product(const mx::array& transposed) {
  const bool here = mx::default_device() != mx::Device::cpu && mx::cu::is_available();
  return here && transposed.dtype() == mx::float32 ? mx::contiguous(transposed) : transposed;
}

}  // namespace

mx::array linear(const mx::array& x, const mx::array& weight, const mx::array* bias) {
  const auto product = [](const std::vector<mx::array>& in) {
    return std::vector<mx::array>{mx::matmul(in[0], mx::transpose(in[1]))};
  };
  const auto gradients = [](const std::vector<mx::array>& in, const std::vector<mx::array>& cotangents,
                            const std::vector<mx::array>&) {
    const mx::array rows = mx::reshape(in[0], {-1, in[0].shape(-1)});
    const mx::array d = mx::transpose(mx::reshape(cotangents[0], {-1, cotangents[0].shape(-1)}));
    return std::vector<mx::array>{mx::matmul(cotangents[0], in[1]), mx::matmul(ready_for_product(d), rows)};
  };
  const mx::array y = mx::custom_vjp(product, gradients)({x, weight}).front();
  return bias == nullptr ? y : y + *bias;
}

}  // namespace trunkline
