// The running softmax of one warp and the merge of a piece's warps. Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Scores may exceed the running maximum by this much (base 2) before it is raised; 2^4 keeps the
// probabilities times the value scale inside half precision with bits to spare below.
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

// What the warps leave in shared memory at the end of a piece: output columns (not divided by the
// sum), maximum and sum of every column.
template <typename Traits, int kColTiles>
struct MergeArea {
  float* o;
  float* max;
  float* sum;
  __device__ explicit MergeArea(char* shared)
      : o(reinterpret_cast<float*>(shared)),
        max(o + Traits::kWarps * 8 * kColTiles * Traits::kMergeRow),
        sum(max + Traits::kWarps * 8 * kColTiles) {}
  __device__ float* Column(int warp, int column) const {
    return o + (warp * 8 * kColTiles + column) * Traits::kMergeRow;
  }
};

// Adds the warps of each head and writes the partial result of the piece: o / sum and
// log2-sum-exp2. Block-wide; the caller has synchronised after the warps' writes.
template <typename Traits, int kDim, int kCols, int kHeadsLog2>
__device__ __forceinline__ void MergeWarps(const DecodeParams& p, const PlanPiece& piece,
                                           char* shared) {
  constexpr int kColTiles = Traits::kColTiles;
  const MergeArea<Traits, kColTiles> area(shared);
  constexpr int kQuads = kDim / 4;
  constexpr int kCopies = kCols == 4 ? 2 : 1;
  const int heads_log2 = kHeadsLog2 >= 0 ? kHeadsLog2 : p.heads_log2;
  const int parts = Traits::kWarps >> heads_log2;
  const int columns = p.group_size << heads_log2;
  for (int i = static_cast<int>(threadIdx.x); i < columns * kQuads; i += Traits::kThreads) {
    const int quad = i % kQuads;
    const int row = i / kQuads;
    const int head = row / p.group_size;
    const int column = row - head * p.group_size;
    const int first = head * 8 * kColTiles + column;
    const int part_step = (8 * kColTiles) << heads_log2;
    float top = kNoScore;
#pragma unroll
    for (int part = 0; part < parts; ++part) top = fmaxf(top, area.max[first + part * part_step]);
    float total = 0;
    float4 o = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
      const int at = first + part * part_step;
      const float weight = Exp2(area.max[at] - top);
#pragma unroll
      for (int copy = 0; copy < kCopies; ++copy) {
        total += weight * area.sum[at + 4 * copy];
        const float4 x = *reinterpret_cast<const float4*>(
            area.o + (at + 4 * copy) * Traits::kMergeRow + 4 * quad);
        o.x += weight * x.x;
        o.y += weight * x.y;
        o.z += weight * x.z;
        o.w += weight * x.w;
      }
    }
    const float inverse = total > 0 ? __frcp_rn(total) : 0.0F;
    const int64_t out = static_cast<int64_t>(piece.partial) * columns + row;
    *reinterpret_cast<float4*>(p.partial_o + out * kDim + 4 * quad) =
        make_float4(o.x * inverse, o.y * inverse, o.z * inverse, o.w * inverse);
    if (quad == 0) p.partial_lse[out] = total > 0 ? top + log2f(total) : -INFINITY;
  }
}

}  // namespace oscar
