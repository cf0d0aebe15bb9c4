// Elementwise work of a decoder layer and of the comparison of logits on the CPU, fused so that
// each activation is read and written once. All functions work on the rows they are given, in one
// thread; callers split rows.
#pragma once

#include <cstdint>

#include "oscar/core/dtype.h"

namespace oscar {

// out[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * weight. Rows of `dim` values, contiguous;
// out may be x. The mean is summed in float32, 16 partial sums per row.
void RmsNormRows(const float* x, const float* weight, float eps, int64_t rows, int64_t dim,
                 float* out);

// How one projection's row splits into heads.
struct HeadSplit {
  int64_t heads = 0;
  int64_t dim = 0;
  const float* norm = nullptr;  // weights of RMSNorm over a head [dim], or none
  float eps = 0;
  int64_t rope_dims = 0;  // first dims of a head that RoPE turns; 0: none
};

// Rows of a projection -> rows of heads after the optional RMSNorm and half-split RoPE:
//   y[i] = x[i] cos[i] - x[i + r/2] sin[i],  y[i + r/2] = x[i + r/2] cos[i] + x[i] sin[i],
// i < r/2, r = rope_dims. x: row t starts at x + t * x_stride and holds heads * dim values;
// cos, sin: [rows, r / 2]; out: [rows, heads, dim].
void SplitHeadRows(const float* x, int64_t x_stride, const float* cos, const float* sin,
                   int64_t rows, const HeadSplit& split, float* out);

// gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i] for `count` values.
void SiluTimes(const float* up, int64_t count, float* gate);

// Largest of x[0..count), count > 0; not a number where one is among them is not promised.
float Largest(const float* x, int64_t count);

// exps[i] = exp(x[i] - shift) in float64, within 2^-50 of itself for x[i] - shift in [-700, 700]
// and clamped beyond. Returns their sum, over 16 partial sums.
double SumOfExps(const float* x, int64_t count, double shift, double* exps);

// Sum of weights[i] (x[i] - y[i]) in float64, over 16 partial sums.
double WeightedDifference(const double* weights, const float* x, const float* y, int64_t count);

// out[i] = x[i] rounded to nearest even, as ToBFloat16().
void RoundToBFloat16(const float* x, int64_t count, BFloat16* out);

}  // namespace oscar
