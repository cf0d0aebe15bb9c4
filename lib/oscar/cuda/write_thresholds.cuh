// What the codes of a group rest on: its range, scale and zero, and the three numbers where the
// code changes (see write_kernel.cuh). Device code.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/write_select.cuh"

namespace oscar {

__device__ __forceinline__ uint32_t PairMaxBFloat16(uint32_t a, uint32_t b) {
  return AsWord(__hmax2(AsPair(a), AsPair(b)));
}
__device__ __forceinline__ uint32_t PairMinBFloat16(uint32_t a, uint32_t b) {
  return AsWord(__hmin2(AsPair(a), AsPair(b)));
}

// Smallest and largest element of each group of both rows.
template <int kGroups>
struct PairRanges {
  uint32_t low[kGroups], high[kGroups];
};

template <int kDim, int kGroups>
__device__ __forceinline__ PairRanges<kGroups> FindRanges(const uint32_t (&x)[kDim / 4]) {
  constexpr int kGroupWords = kDim / 4 / kGroups;
  PairRanges<kGroups> r;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t low = x[group * kGroupWords], high = low;
#pragma unroll
    for (int i = 1; i < kGroupWords; ++i) {
      low = PairMinBFloat16(low, x[group * kGroupWords + i]);
      high = PairMaxBFloat16(high, x[group * kGroupWords + i]);
    }
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      low = PairMinBFloat16(low, __shfl_xor_sync(~0U, low, lane));
      high = PairMaxBFloat16(high, __shfl_xor_sync(~0U, high, lane));
    }
    r.low[group] = low;
    r.high[group] = high;
  }
  return r;
}

// Affine parameters of one group of one row, and the limited range they come from.
struct GroupParameters {
  float low, high;
  float scale, zero, reciprocal;
};

// Scale and zero by the fast forms of division, which are exact for tame groups; clears `tame` for
// others.
//   range / 3: the product with the rounded 1/3 and one correction; every mantissa is tried in
//     tests/cuda/division_test.cc.
//   1 / scale: the hardware's estimate and one step of Newton's iteration, as the compiler divides.
//   -low / scale: the product with the rounded reciprocal and two corrections, the second of which
//     starts within one step of the quotient (Markstein's theorem).
__device__ __forceinline__ GroupParameters MakeParameters(float low, float high, bool& tame) {
  constexpr float kThird = 1.0F / 3.0F;
  GroupParameters p{low, high, 0, 0, 0};
  const float range = __fsub_rn(high, low);
  const float third = __fmul_rn(range, kThird);
  p.scale = __fmaf_rn(__fmaf_rn(-3.0F, third, range), kThird, third);
  float estimate;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(estimate) : "f"(p.scale));
  p.reciprocal = __fmaf_rn(__fmaf_rn(-p.scale, estimate, 1.0F), estimate, estimate);
  const float below = __fsub_rn(0.0F, low);
  float quotient = __fmul_rn(below, p.reciprocal);
  quotient = __fmaf_rn(__fmaf_rn(-quotient, p.scale, below), p.reciprocal, quotient);
  p.zero = __fmaf_rn(__fmaf_rn(-quotient, p.scale, below), p.reciprocal, quotient);
  tame = tame && range > 0x1p-26F && p.scale < 0x1p60F && fabsf(p.zero) < 1024.0F &&
         (low == 0.0F || fabsf(p.zero) > 0x1p-60F);
  return p;
}

__device__ __forceinline__ void RedoParameters(GroupParameters& p) {
  p.scale = __fdiv_rn(fmaxf(__fsub_rn(p.high, p.low), 1e-8F), 3.0F);
  p.zero = __fdiv_rn(__fsub_rn(0.0F, p.low), p.scale);
}

// x / s + z + 1/2 for tame groups, whose code is the integer part.
__device__ __forceinline__ float TamePosition(float x, const GroupParameters& p) {
  const float q = __fmul_rn(x, p.reciprocal);
  const float quotient = __fmaf_rn(__fmaf_rn(-q, p.scale, x), p.reciprocal, q);
  return __fadd_rn(__fadd_rn(quotient, p.zero), 0.5F);
}

// bf16 numbers as integers in their order, and back to the number.
__device__ __forceinline__ float AtOrdinal(int ordinal) {
  return __int_as_float((ordinal < 0 ? 0x8000 - ordinal : ordinal) << 16);
}
// The smallest bf16 number that is at least x.
__device__ __forceinline__ int OrdinalFrom(float x) {
  const int bits = __float_as_int(x);
  return bits >= 0 ? (bits + 0xffff) >> 16 : -((bits & 0x7fffffff) >> 16);
}

// Where the code of a tame group reaches `code`: a guess from the inverse of the formula.
__device__ __forceinline__ int GuessThreshold(const GroupParameters& p, int code) {
  // x / s + z has to reach y, the smallest number that 1/2 more rounds up to `code`; half a step
  // less rounds to y.
  const float y = code == 1 ? 0.5F - 0x1p-25F : static_cast<float>(code) - 0.5F;
  const float half_step = code == 1 ? 0x1p-26F : (code == 2 ? 0x1p-24F : 0x1p-23F);
  return OrdinalFrom(__fmul_rn(p.scale, __fsub_rn(__fsub_rn(y, p.zero), half_step)));
}

// The row pair's thresholds, the smallest bf16 x with codes of at least 1, 2, 3: guessed, and
// confirmed by the formula on both sides. Lanes 0 and 1 of the four work for the first row, lanes 2
// and 3 for the second; p are the parameters of the lane's row. Clears `proved` where that fails.
__device__ __forceinline__ void PairThresholds(const GroupParameters& p, bool& proved,
                                               uint32_t (&out)[3]) {
  const int lane = static_cast<int>(threadIdx.x) & 31, four = lane & ~3;
  const int code[2] = {(lane & 1) == 0 ? 1 : 2, 3};
  int at[2];
  bool here[2], before[2], sure = true;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const auto wanted = static_cast<float>(code[i]);
    at[i] = GuessThreshold(p, code[i]);
    here[i] = TamePosition(AtOrdinal(at[i]), p) >= wanted;
    before[i] = TamePosition(AtOrdinal(at[i] - 1), p) >= wanted;
    sure = sure && here[i] && !before[i];
  }
  if (__any_sync(~0U, !sure)) {
    // Rounding put a guess one step off.
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const auto wanted = static_cast<float>(code[i]);
      at[i] += before[i] ? -1 : (here[i] ? 0 : 1);
      proved = proved && TamePosition(AtOrdinal(at[i]), p) >= wanted &&
               !(TamePosition(AtOrdinal(at[i] - 1), p) >= wanted);
    }
  }
  const uint32_t own =
      __byte_perm(__float_as_uint(AtOrdinal(at[0])), __float_as_uint(AtOrdinal(at[1])), 0x7632);
  uint32_t from[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) from[i] = __shfl_sync(~0U, own, four + i);
  out[0] = __byte_perm(from[0], from[2], 0x5410);
  out[1] = __byte_perm(from[1], from[3], 0x5410);
  out[2] = __byte_perm(from[0], from[2], 0x7632);
}

}  // namespace oscar
