// Partial attention over bf16 tokens. Device code.
//
// Same division of work as for 2-bit tokens, with 16 tokens per warp and tile: K rows are the A
// operand of S = K q^T, fetched transposed V rows that of O^T = V^T p^T, both in bf16 with float32
// sums. To keep the precision of p, it is split into a bf16 number and a bf16 rest. With at most
// four query heads per KV head the rest travels in columns 4-7 of the same multiply; with more than
// eight, rows serve two column tiles.
#pragma once

#include "oscar/cuda/decode_copy.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct RowWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr bool kShared = Traits::kSharedColumns;
  static constexpr int kTiles = Traits::kColumnTiles;
  static constexpr int kSteps = kDim / 16;

  uint32_t q[kTiles][kSteps][2];
  WarpResult<kSteps> result[kTiles];
  float p_cur[kTiles][4];  // probabilities of the current tile
  float scale;
  uint32_t key_row, value_row;  // row offset in the stage
  uint32_t key_chunk, value_chunk, swizzle;

  __device__ RowWarp(const DecodeParams& p, const PlanPiece& piece, const WarpPlace& place)
      : scale(p.logit_scale) {
    uint32_t lane = threadIdx.x & 31;
    Pin(lane);  // what follows is not worth registers while another tier is read
    const int g = static_cast<int>(lane) >> 2, t = static_cast<int>(lane) & 3;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const uint32_t row = lane & 7, matrix = lane >> 3;
    const auto base = static_cast<uint32_t>(((place.part << heads_log2) + place.head_in_block) *
                                            Traits::kWarpRowBytes);
    key_row = base + ((matrix & 1) * 8 + row) * (kDim * 2);
    key_chunk = matrix >> 1;
    value_row = base + ((matrix >> 1) * 8 + row) * (kDim * 2);
    value_chunk = matrix & 1;
    swizzle = row;
    const int head = (piece.head_block << heads_log2) + place.head_in_block;
    WaitForPredecessors();  // nothing before depends on what they write
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const int column = kShared ? (g & 3) : (place.columns + tile) * 8 + g;
      const bool present = column < p.group_size;
      const int64_t query =
          (static_cast<int64_t>(piece.request) * p.kv_heads + head) * p.group_size +
          (present ? column : 0);
      const uint16_t* from = p.q + query * kDim + 2 * t;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        q[tile][s][0] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s) : 0;
        q[tile][s][1] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s + 8) : 0;
      }
      result[tile].Clear();
    }
  }

  __device__ __forceinline__ void Scores(uint32_t stage, int left) {
    float acc[kTiles][4];
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) acc[i >> 2][i & 3] = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4(a, stage + key_row + (((2 * s + key_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        MultiplyBFloat16(acc[tile], a, q[tile][s][0], q[tile][s][1]);
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) Weigh(acc[tile], left, result[tile], p_cur[tile]);
  }

  __device__ __forceinline__ void AddValues(uint32_t stage) {
    constexpr int kTerms = kShared ? 1 : 2;
    uint32_t b[kTiles][kTerms][2];
    const bool rest_lane = kShared && (threadIdx.x & 2) != 0;
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i >> 1, row = i & 1;
      const float x = p_cur[tile][2 * row], y = p_cur[tile][2 * row + 1];
      const uint32_t head = PackBFloat16(x, y);
      const uint32_t rest = PackBFloat16(x - LowBFloat16(head), y - HighBFloat16(head));
      b[tile][0][row] = TransposeMatrix(rest_lane ? rest : head);
      if constexpr (!kShared) b[tile][1][row] = TransposeMatrix(rest);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4Transposed(a, stage + value_row + (((2 * s + value_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int i = 0; i < kTiles * kTerms; ++i) {
        const uint32_t(&f)[2] = b[i / kTerms][i % kTerms];
        MultiplyBFloat16(result[i / kTerms].o[s], a, f[0], f[1]);
      }
    }
  }

  __device__ __forceinline__ void Finish() {
    for (WarpResult<kSteps>& r : result) {
      r.sum[0] = ColumnSum(r.sum[0]);
      r.sum[1] = ColumnSum(r.sum[1]);
    }
  }

  // Writes numbers c and c + 2 of steps 4 i + low, x[i], to their channels of a row.
  template <int kCount>
  __device__ __forceinline__ static void Store(float* row, const float (&x)[kCount][4], int c,
                                               int low) {
    float* const at = row + 16 * low + ((static_cast<int>(threadIdx.x) & 31) >> 2);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      at[64 * i] = x[i][c];
      at[64 * i + 8] = x[i][c + 2];
    }
  }

 private:
  // From products to probabilities; `left` tokens of the warp's exist.
  __device__ __forceinline__ void Weigh(float (&acc)[4], int left, WarpResult<kSteps>& r,
                                        float (&probability)[4]) const {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    bool high = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = g + 8 * (i >> 1);
      acc[i] = token < left ? acc[i] * scale : -INFINITY;
      high |= acc[i] - r.max[i & 1] > kLazyBits;
    }
    if (__any_sync(~0U, high)) Rescale(acc, r);
#pragma unroll
    for (int i = 0; i < 4; ++i) probability[i] = Exp2(acc[i] - r.max[i & 1]);
    // Columns 4-7 repeat 0-3: counted once.
    if (!kShared || (threadIdx.x & 2) == 0) {
      r.sum[0] += probability[0] + probability[2];
      r.sum[1] += probability[1] + probability[3];
    }
  }

  __device__ __forceinline__ static void Rescale(const float (&raw)[4], WarpResult<kSteps>& r) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float top = ColumnMax(fmaxf(r.max[c], fmaxf(raw[c], raw[c + 2])), false);
      const float factor = Exp2(r.max[c] - top);
      r.max[c] = top;
      r.sum[c] *= factor;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        r.o[i][c] *= factor;
        r.o[i][c + 2] *= factor;
      }
    }
  }
};

}  // namespace oscar
