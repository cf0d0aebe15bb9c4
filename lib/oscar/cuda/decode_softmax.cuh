// What the running softmax of a warp is made of, and which part of a tile it takes. Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Scores of bf16 rows may exceed the running maximum by this much (base 2) before it is raised.
inline constexpr float kLazyBits = 4.0F;
// Running maximum before the first token: finite, so that differences stay defined.
inline constexpr float kNoScore = -1e30F;

// Largest value and sum of the lanes that share columns 2t and 2t + 1.
__device__ __forceinline__ float ColumnMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0U, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0U, x, 16));
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

}  // namespace oscar
