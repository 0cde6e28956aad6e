// What this project's own operations on f32 arrays on the CPU have in common.
#pragma once

#include <mlx/backend/cpu/encoder.h>
#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <stdexcept>
#include <utility>
#include <vector>

namespace trunkline {

namespace mx = mlx::core;

// Memory for an output: the input's own if nobody else needs it, else new.
inline void allocate(const mx::array& in, mx::array& out) {
  if (in.is_donatable()) {
    out.copy_shared_buffer(in);
  } else {
    out.set_data(mx::allocator::malloc(out.nbytes()));
  }
}

// A primitive of f32 arrays on the CPU. Inputs are row-contiguous.
class CpuPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::logic_error("this primitive runs on the CPU alone");
  }

 protected:
  // Runs `work` in its turn on the stream; the arrays outlive it.
  template <typename Work>
  void run(Work&& work) {
    mx::cpu::get_command_encoder(stream()).dispatch(std::forward<Work>(work));
  }
};

}  // namespace trunkline
