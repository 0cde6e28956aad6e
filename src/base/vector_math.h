// Loops over floats in vectors (Highway): the processor's widest instructions, chosen when the program runs. exp is
// within 1 ulp. Among the inputs, a NaN makes NaN of all that it enters; what an infinity does is said where it is not
// the same.
#pragma once

#include <cstddef>

namespace trunkline {

// out = softmax(scale * in); `out` may be `in`. Returns log(sum(exp(scale * in))). An infinity makes all of it NaN.
float softmax(const float* in, float* out, size_t count, float scale);

// What softmax's input is owed, from its output `p` and the cotangent of that: scale * p * (dp - sum(p * dp)). `out`
// may be `dp`. An infinity leaves nothing of it finite.
void softmax_gradient(const float* p, const float* dp, float* out, size_t count, float scale);

// out = gate * sigmoid(gate) * up; `out` may be either. An infinity, also a negative one, leaves its element not
// finite.
void swiglu(const float* gate, const float* up, float* out, size_t count);

// What gate and up are owed, from the cotangent `d` of swiglu's output. The outputs may be the inputs.
void swiglu_gradients(const float* gate, const float* up, const float* d, float* d_gate, float* d_up, size_t count);

// out = x / sqrt(mean(x^2) + epsilon) * weight; `out` may be `x`. An infinity in x is NaN in its place and makes the
// others 0; numbers whose squares overflow make all 0.
void rms_norm(const float* x, const float* weight, float* out, size_t count, float epsilon);

// What x is owed, from the cotangent `d` of that; what the weight is owed is added to `d_weight`. `d_x` may be `x` or
// `d`. An infinity in x makes all of d_x NaN, and its own element of d_weight.
void rms_norm_gradients(const float* x, const float* weight, const float* d, float* d_x, float* d_weight, size_t count,
                        float epsilon);

// Pairs (x[i], x[half + i]) turned by angles of which cosine and sine are given, i < half; back: by their negatives.
// `out` may be `x`.
void rotate(const float* x, const float* cosine, const float* sine, float* out, size_t half, bool back);

// A step of AdamW, as the same bits on every processor: replicas stay alike. m and v are running means of the gradient
// times `scale` and of its square: m = beta1 m + rest1 g, v = beta2 v + rest2 g^2, weights = keep weights - rate m /
// (sqrt(v) root + epsilon).
struct AdamwFactors {
  float scale, beta1, rest1, beta2, rest2;
  float keep;  // of the weights: what decay leaves
  float rate, root, epsilon;
};
void adamw_step(float* weights, float* m, float* v, const float* gradient, size_t count, const AdamwFactors& factors);

}  // namespace trunkline
