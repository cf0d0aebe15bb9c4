// The running softmax of one warp, and sums over warps. Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Scores of bf16 rows may exceed the running maximum by this much (base 2) before it is raised.
inline constexpr float kLazyBits = 4.0F;
// Running maximum before the first token: finite, so that differences stay defined.
inline constexpr float kNoScore = -1e30F;

// Largest value of the lanes that share columns 2t and 2t + 1, and of their copies in lane t ^ 2.
__device__ __forceinline__ float ColumnMax(float x, bool copies) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 8));
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 16));
  return copies ? fmaxf(x, __shfl_xor_sync(~0U, x, 2)) : x;
}

__device__ __forceinline__ float ColumnSum(float x) {
  x += __shfl_xor_sync(~0U, x, 4);
  x += __shfl_xor_sync(~0U, x, 8);
  return x + __shfl_xor_sync(~0U, x, 16);
}

// Which part of a tile a warp computes, from its number. `columns`: which eight of the query heads,
// where warps share them.
struct WarpPlace {
  int warp, head_in_block, columns, part, parts;
  __device__ __forceinline__ WarpPlace(int warps, int heads_log2, int column_warps_log2) {
    uint32_t thread = threadIdx.x;
    Pin(thread);  // cheaper to work out again than to keep
    warp = static_cast<int>(thread) >> 5;
    head_in_block = warp & ((1 << heads_log2) - 1);
    columns = (warp >> heads_log2) & ((1 << column_warps_log2) - 1);
    part = warp >> (heads_log2 + column_warps_log2);
    parts = warps >> (heads_log2 + column_warps_log2);
  }
};

// What a warp knows at the end of a piece, in fragments: output columns, not divided by the sum,
// and maximum and sum of columns 2t and 2t + 1.
template <int kSteps>
struct WarpResult {
  float o[kSteps][4];
  float max[2], sum[2];

  __device__ __forceinline__ void Clear() {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) o[s][0] = o[s][1] = o[s][2] = o[s][3] = 0;
    max[0] = max[1] = kNoScore;
    sum[0] = sum[1] = 0;
  }
  __device__ __forceinline__ void Add(const WarpResult& other) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float top = fmaxf(max[c], other.max[c]);
      const float mine = Exp2(max[c] - top), theirs = Exp2(other.max[c] - top);
      max[c] = top;
      sum[c] = sum[c] * mine + other.sum[c] * theirs;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        o[s][c] = o[s][c] * mine + other.o[s][c] * theirs;
        o[s][c + 2] = o[s][c + 2] * mine + other.o[s][c + 2] * theirs;
      }
    }
  }

  // Adds the parts of every head up in the warps of parts 0 and 1. `scratch` holds half of the
  // warps.
  __device__ __forceinline__ void AddParts(const WarpPlace& place, int threads, char* scratch) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int per_part = (threads >> 5) / place.parts;
    for (int half = place.parts >> 1; half > 1; half >>= 1) {
      const bool gives = place.part >= half && place.part < 2 * half;
      const int to = place.warp - (gives ? half * per_part : 0);
      float4* const area = reinterpret_cast<float4*>(scratch) + to * (kSteps + 1) * 32 + lane;
      if (gives) {
#pragma unroll
        for (int s = 0; s < kSteps; ++s)
          area[32 * s] = make_float4(o[s][0], o[s][1], o[s][2], o[s][3]);
        area[32 * kSteps] = make_float4(max[0], max[1], sum[0], sum[1]);
      }
      SynchroniseThreads(threads);
      if (place.part < half) {
        WarpResult other;
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          const float4 x = area[32 * s];
          other.o[s][0] = x.x;
          other.o[s][1] = x.y;
          other.o[s][2] = x.z;
          other.o[s][3] = x.w;
        }
        const float4 x = area[32 * kSteps];
        other.max[0] = x.x;
        other.max[1] = x.y;
        other.sum[0] = x.z;
        other.sum[1] = x.w;
        Add(other);
      }
      SynchroniseThreads(threads);
    }
  }
};

}  // namespace oscar
