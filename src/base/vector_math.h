// Loops over floats that need exp, in vectors (Highway): the processor's widest instructions, chosen when the program
// runs. exp is within 1 ulp. A NaN or infinity among the inputs gives NaN, never a number.
#pragma once

#include <cstddef>

namespace trunkline {

// out = softmax(scale * in); `out` may be `in`.
void softmax(const float* in, float* out, size_t count, float scale);

// What softmax's input is owed, from its output `p` and the cotangent of that: scale * p * (dp - sum(p * dp)). `out`
// may be `dp`.
void softmax_gradient(const float* p, const float* dp, float* out, size_t count, float scale);

// out = gate * sigmoid(gate) * up; `out` may be either.
void swiglu(const float* gate, const float* up, float* out, size_t count);

// What gate and up are owed, from the cotangent `d` of swiglu's output. The outputs may be the inputs.
void swiglu_gradients(const float* gate, const float* up, const float* d, float* d_gate, float* d_up, size_t count);

}  // namespace trunkline
