#include "oscar/model/layer_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "oscar/model/cpu_dispatch.h"

namespace oscar {
namespace {

constexpr int kLanes = 16;

// Sum of term(i) over kLanes partial sums, added up in pairs: the order does not depend on the
// instruction set.
template <typename Sum, typename Term>
[[gnu::always_inline]] inline Sum LaneSum(int64_t count, const Term& term) {
  Sum partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += term(i + lane);
  }
  for (int lane = 0; i < count; ++i, ++lane) partial[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  }
  return partial[0];
}

[[gnu::always_inline]] inline void RmsNormRow(const float* x, const float* weight, float eps,
                                              int64_t dim, float* out) {
  const float squares = LaneSum<float>(dim, [x](int64_t i) { return x[i] * x[i]; });
  const float scale = 1.0F / std::sqrt(squares / static_cast<float>(dim) + eps);
  for (int64_t i = 0; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

[[gnu::always_inline]] inline void RmsNormBody(const float* x, const float* weight, float eps,
                                               int64_t rows, int64_t dim, float* out) {
  for (int64_t t = 0; t < rows; ++t) RmsNormRow(x + t * dim, weight, eps, dim, out + t * dim);
}

[[gnu::always_inline]] inline void RopeHead(const float* x, const float* cos, const float* sin,
                                            int64_t half, float* out) {
  for (int64_t i = 0; i < half; ++i) {
    const float first = x[i];
    const float second = x[i + half];
    out[i] = first * cos[i] - second * sin[i];
    out[i + half] = second * cos[i] + first * sin[i];
  }
}

// `scratch` [dim] holds a normalised head.
[[gnu::always_inline]] inline void SplitBody(const float* x, int64_t x_stride, const float* cos,
                                             const float* sin, int64_t rows, const HeadSplit& split,
                                             float* out, float* scratch) {
  const int64_t half = split.rope_dims / 2;
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t h = 0; h < split.heads; ++h) {
      const float* head = x + t * x_stride + h * split.dim;
      float* to = out + (t * split.heads + h) * split.dim;
      if (split.norm != nullptr) {
        RmsNormRow(head, split.norm, split.eps, split.dim, scratch);
        head = scratch;
      }
      RopeHead(head, cos + t * half, sin + t * half, half, to);
      std::copy(head + 2 * half, head + split.dim, to + 2 * half);
    }
  }
}

// exp(x) for finite x, relative error below 2 ulp in [-87, 88]: x = n ln 2 + r, |r| <= ln 2 / 2,
// and a polynomial of degree 6 in r (its remainder r^7 / 7! is below 1.2e-7 of the result).
// Arguments beyond the range are clamped to it.
[[gnu::always_inline]] inline float Exp(float x) {
  x = std::min(std::max(x, -87.0F), 88.0F);
  const float n = std::nearbyint(x * 1.44269504F);
  // ln 2 in two parts: the first has few bits, so n * 0.693359375 is exact.
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float p = 1.0F / 720;
  p = p * r + 1.0F / 120;
  p = p * r + 1.0F / 24;
  p = p * r + 1.0F / 6;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const float power = std::bit_cast<float>((static_cast<int32_t>(n) + 127) << 23);
  return p * power;
}

[[gnu::always_inline]] inline void SiluBody(const float* up, int64_t count, float* gate) {
  for (int64_t i = 0; i < count; ++i) gate[i] = gate[i] / (1.0F + Exp(-gate[i])) * up[i];
}

// exp(x) in float64: x = n ln 2 + r, |r| <= ln 2 / 2, and the Taylor polynomial of degree 13 in r
// (remainder r^14 / 14! < 5e-18). Adding 1.5 * 2^52 rounds to an integer n and leaves it in the low
// bits, from where it moves into the exponent: no conversion, so that every instruction set has it.
[[gnu::always_inline]] inline double Exp(double x) {
  constexpr double kShift = 0x1.8p52;
  x = std::min(std::max(x, -700.0), 700.0);
  const double shifted = x * 0x1.71547652b82fep0 + kShift;  // log2(e)
  const double n = shifted - kShift;
  // ln 2 in two parts: n times the first is exact.
  const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
  double p = 1.0 / 6227020800;
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p) +
                               (std::bit_cast<uint64_t>(shifted) << 52));
}

[[gnu::always_inline]] inline void LargestBody(const float* x, int64_t count, float* out) {
  float partial[kLanes];
  for (float& p : partial) p = x[0];
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] = std::max(partial[lane], x[i + lane]);
  }
  for (; i < count; ++i) partial[0] = std::max(partial[0], x[i]);
  *out = *std::max_element(partial, partial + kLanes);
}

[[gnu::always_inline]] inline void ExpsBody(const float* x, int64_t count, double shift,
                                            double* exps, double* sum) {
  for (int64_t i = 0; i < count; ++i) exps[i] = Exp(static_cast<double>(x[i]) - shift);
  *sum = LaneSum<double>(count, [&](int64_t i) { return exps[i]; });
}

[[gnu::always_inline]] inline void DifferenceBody(const double* weights, const float* x,
                                                  const float* y, int64_t count, double* sum) {
  *sum = LaneSum<double>(count, [&](int64_t i) {
    return weights[i] * (static_cast<double>(x[i]) - static_cast<double>(y[i]));
  });
}

[[gnu::always_inline]] inline void RoundBody(const float* x, int64_t count, BFloat16* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToBFloat16(x[i]);
}

#define OSCAR_SAME_BODY(name, parameters, body) \
  OSCAR_CPU_VARIANTS(name, parameters, body, body, body)

OSCAR_SAME_BODY(RmsNormLoop,
                (const float* x, const float* weight, float eps, int64_t rows, int64_t dim,
                 float* out),
                (RmsNormBody(x, weight, eps, rows, dim, out)))
OSCAR_SAME_BODY(SplitLoop,
                (const float* x, int64_t x_stride, const float* cos, const float* sin, int64_t rows,
                 const HeadSplit& split, float* out, float* scratch),
                (SplitBody(x, x_stride, cos, sin, rows, split, out, scratch)))
OSCAR_SAME_BODY(SiluLoop, (const float* up, int64_t count, float* gate),
                (SiluBody(up, count, gate)))
OSCAR_SAME_BODY(RoundLoop, (const float* x, int64_t count, BFloat16* out),
                (RoundBody(x, count, out)))
OSCAR_SAME_BODY(LargestLoop, (const float* x, int64_t count, float* out),
                (LargestBody(x, count, out)))
OSCAR_SAME_BODY(ExpsLoop, (const float* x, int64_t count, double shift, double* exps, double* sum),
                (ExpsBody(x, count, shift, exps, sum)))
OSCAR_SAME_BODY(DifferenceLoop,
                (const double* weights, const float* x, const float* y, int64_t count, double* sum),
                (DifferenceBody(weights, x, y, count, sum)))

}  // namespace

void RmsNormRows(const float* x, const float* weight, float eps, int64_t rows, int64_t dim,
                 float* out) {
  RmsNormLoop(x, weight, eps, rows, dim, out);
}

void SplitHeadRows(const float* x, int64_t x_stride, const float* cos, const float* sin,
                   int64_t rows, const HeadSplit& split, float* out) {
  std::vector<float> scratch(static_cast<size_t>(split.dim));
  SplitLoop(x, x_stride, cos, sin, rows, split, out, scratch.data());
}

void SiluTimes(const float* up, int64_t count, float* gate) { SiluLoop(up, count, gate); }

void RoundToBFloat16(const float* x, int64_t count, BFloat16* out) { RoundLoop(x, count, out); }

float Largest(const float* x, int64_t count) {
  float out;
  LargestLoop(x, count, &out);
  return out;
}

double SumOfExps(const float* x, int64_t count, double shift, double* exps) {
  double sum;
  ExpsLoop(x, count, shift, exps, &sum);
  return sum;
}

double WeightedDifference(const double* weights, const float* x, const float* y, int64_t count) {
  double sum;
  DifferenceLoop(weights, x, y, count, &sum);
  return sum;
}

}  // namespace oscar
