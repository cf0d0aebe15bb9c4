// What the kernel that adds partial results up keeps of them. Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Copies of partial results, those of a warp: 1 KiB of channels a round, two units of 16 bytes to a
// lane, with as many maxima and sums as there may be partial results in it.
struct MergeMemory {
  struct Round {
    float4 units[2][32];
    float2 pairs[32];
  };
  Round rounds[kMergeRounds];
};
static_assert(kMergeWarps * sizeof(MergeMemory) == kMergeSharedBytes);

// Of partial results i, with the largest maximum M so far: o = sum_i 2^(max_i - M) o_i, weight =
// sum_i 2^(max_i - M) sum_i.
struct MergeSum {
  float max = -INFINITY, weight = 0;
  float4 o = {0, 0, 0, 0};

  __device__ __forceinline__ void Scale(float factor) {
    weight *= factor;
    o = {o.x * factor, o.y * factor, o.z * factor, o.w * factor};
  }
  // Takes `top`, at least the maximum, as the maximum. Partial results are added with factor
  // 2^(max_i - base), of the base that this returns.
  __device__ __forceinline__ float Raise(float top) {
    const float base = top > -INFINITY ? top : 0.0F;
    Scale(Exp2(max - base));
    max = top;
    return base;
  }
  __device__ __forceinline__ void Add(float factor, float sum, const float4& x) {
    weight = fmaf(factor, sum, weight);
    o = {fmaf(factor, x.x, o.x), fmaf(factor, x.y, o.y), fmaf(factor, x.z, o.z),
         fmaf(factor, x.w, o.w)};
  }
  // Adds up what lanes kStep, 2 kStep, ... apart have; all of them have the result.
  template <int kStep>
  __device__ __forceinline__ void AddLanes() {
#pragma unroll
    for (int step = kStep; step < 32; step <<= 1) {
      const auto other = [&](float x) { return __shfl_xor_sync(~0U, x, step); };
      // A number also where neither has a partial result; the same in both lanes.
      const float base = fmaxf(fmaxf(max, other(max)), -1e38F);
      Scale(Exp2(max - base));
      max = base;
      weight += other(weight);
      o.x += other(o.x);
      o.y += other(o.y);
      o.z += other(o.z);
      o.w += other(o.w);
    }
  }
};

}  // namespace oscar
