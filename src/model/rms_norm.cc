#include "model/rms_norm.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/vector_math.h"
#include "model/cpu_primitive.h"
#include "model/fused.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

// Rows whose part of the weight's gradient is summed by itself: one sum over thousands would lose digits.
constexpr size_t kRows = 64;

class RmsNormGradients : public CpuPrimitive {
 public:
  RmsNormGradients(mx::Stream stream, float epsilon) : CpuPrimitive(stream), epsilon_(epsilon) {}
  const char* name() const override { return "RmsNormGradients"; }

  // {x, weight, d} -> {d_x, d_weight}
  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    allocate(inputs[2], outputs[0]);
    outputs[1].set_data(mx::allocator::malloc(outputs[1].nbytes()));
    run([x = inputs[0].data<float>(), weight = inputs[1].data<float>(), d = inputs[2].data<float>(),
         d_x = outputs[0].data<float>(), d_weight = outputs[1].data<float>(), size = outputs[0].size(),
         columns = outputs[1].size(), epsilon = epsilon_] {
      std::fill_n(d_weight, columns, 0.0f);
      std::vector<float> sums(columns);
      for (size_t begin = 0; begin < size; begin += kRows * columns) {
        std::ranges::fill(sums, 0.0f);
        for (size_t at = begin; at < std::min(size, begin + kRows * columns); at += columns) {
          rms_norm_gradients(x + at, weight, d + at, d_x + at, sums.data(), columns, epsilon);
        }
        for (size_t i = 0; i < columns; ++i) d_weight[i] += sums[i];
      }
    });
  }

 private:
  float epsilon_;
};

class RmsNorm : public CpuPrimitive {
 public:
  RmsNorm(mx::Stream stream, float epsilon) : CpuPrimitive(stream), epsilon_(epsilon) {}
  const char* name() const override { return "RmsNorm"; }

  // {x, weight}
  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    allocate(inputs[0], outputs[0]);
    run([x = inputs[0].data<float>(), weight = inputs[1].data<float>(), out = outputs[0].data<float>(),
         size = outputs[0].size(), columns = inputs[1].size(), epsilon = epsilon_] {
      for (size_t at = 0; at < size; at += columns) trunkline::rms_norm(x + at, weight, out + at, columns, epsilon);
    });
  }

  Arrays vjp(const Arrays& primals, const Arrays& cotangents, const std::vector<int>& argnums, const Arrays&) override {
    const Arrays both = mx::array::make_arrays({primals[0].shape(), primals[1].shape()}, {mx::float32, mx::float32},
                                               std::make_shared<RmsNormGradients>(stream(), epsilon_),
                                               {primals[0], primals[1], mx::contiguous(cotangents[0])});
    Arrays wanted;
    for (const int argument : argnums) wanted.push_back(both[static_cast<size_t>(argument)]);
    return wanted;
  }

 private:
  float epsilon_;
};

}  // namespace

mx::array rms_norm(const mx::array& x, const mx::array& weight, float epsilon) {
  if (!fused_here(x) || !fused_here(weight)) return mx::fast::rms_norm(x, weight, epsilon);
  return mx::array(x.shape(), mx::float32, std::make_shared<RmsNorm>(mx::to_stream({}), epsilon),
                   {mx::contiguous(x), mx::contiguous(weight)});
}

}  // namespace trunkline
