#include "oscar/model/layer_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "oscar/model/cpu_dispatch.h"

namespace oscar {
namespace {

constexpr int kLanes = 16;

// sum x^2 with kLanes independent sums, so that the order does not depend on the instruction set.
[[gnu::always_inline]] inline float SumOfSquares(const float* x, int64_t dim) {
  float partial[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += x[i + lane] * x[i + lane];
  }
  for (int lane = 0; i < dim; ++i, ++lane) partial[lane] += x[i] * x[i];
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) partial[lane] += partial[lane + width];
  }
  return partial[0];
}

[[gnu::always_inline]] inline void RmsNormRow(const float* x, const float* weight, float eps,
                                              int64_t dim, float* out) {
  const float scale = 1.0F / std::sqrt(SumOfSquares(x, dim) / static_cast<float>(dim) + eps);
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

}  // namespace oscar
