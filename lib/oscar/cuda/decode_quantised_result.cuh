// What a warp has added up of a piece of 2-bit tokens, and what PieceSum makes of it. Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/decode_quantised_columns.cuh"

namespace oscar {

template <int kDim, int kGroups, typename Traits>
struct QuantisedResult {
  static constexpr int kTiles = Traits::kColumnTiles;
  static constexpr int kCount = Traits::kLaneQueries;
  using Columns = QuantisedColumns<kDim, kGroups, kCount>;

  Columns columns[kTiles];
  bool fresh = true;  // no score yet
  // Power of two on p s, so that it fills half precision: the sum of a lane's value scales times it
  // is at most kMostScale. Before the first tile no sum fits, not even zero.
  float boost = INFINITY;

  // The factor of a query's numbers beside 2^(max - largest max):
  __device__ __forceinline__ float Down() const { return InversePower(boost); }
  __device__ __forceinline__ float Max(int tile, int c) const {
    return fresh ? kNoScore : columns[tile].max[c];
  }
  // Sums over the lanes of a query: of p, in the lanes with g = 0, and of what goes off the output,
  // p s z, in those with g = 1; by groups in all lanes.
  __device__ __forceinline__ void AddLanes(int tile, int c, float& sum,
                                           float (&zeros)[kGroups]) const {
    sum = columns[tile].sum[c];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) zeros[group] = columns[tile].zero[group][c];
    if constexpr (kGroups == 1) {
      const bool second = (threadIdx.x & 4) != 0;
      const float away = second ? sum : zeros[0], here = second ? zeros[0] : sum;
      float x = here + __shfl_xor_sync(~0U, away, 4);
      x += __shfl_xor_sync(~0U, x, 8);
      x += __shfl_xor_sync(~0U, x, 16);
      sum = zeros[0] = x;
    } else {
      sum = ColumnSum(sum);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zeros[group] = ColumnSum(zeros[group]);
    }
  }
  // Numbers of steps 4 steps + 0..3 in rows 0-7 (half 0) or 8-15: one byte's four fields.
  __device__ __forceinline__ float4 Unit(int tile, int c, int steps, int half) const {
    const auto& o = columns[tile].o;
    const int i = c + 2 * half, s = 4 * steps;
    return make_float4(o[s][i], o[s + 1][i], o[s + 2][i], o[s + 3][i]);
  }

  // The output of what Unit gave row g of (steps, half), summed up: without the factors of the
  // subnormal codes, their other fields (kWholeBytes) and the zero terms.
  __device__ __forceinline__ static void Finish(float4& x, const float (&zeros)[kGroups], int steps,
                                                int half) {
    if (Columns::kWholeBytes && (kDim == 64 ? half : steps & 1) != 0) x.w -= x.x + x.y + x.z;
    x.x = fmaf(x.x, 0x1p24F, -zeros[0]);
    x.y = fmaf(x.y, 0x1p22F, -zeros[kGroups == 1 ? 0 : 1]);
    x.z = fmaf(x.z, 0x1p20F, -zeros[kGroups == 1 ? 0 : 2]);
    x.w = fmaf(x.w, 0x1p18F, -zeros[kGroups == 1 ? 0 : 3]);
  }
  __device__ __forceinline__ static void Store(float* row, const float4& x, int g, int steps,
                                               int half) {
    float* const at =
        row + (kDim == 64 ? 2 * g + half : (steps >> 1) * 32 + 16 * half + 2 * g + (steps & 1));
    at[0] = x.x;
    at[kDim / 4] = x.y;
    at[kDim / 2] = x.z;
    at[3 * kDim / 4] = x.w;
  }
};

}  // namespace oscar
