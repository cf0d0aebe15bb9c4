// Partial attention over bf16 tokens. Device code.
//
// Same division of work as for 2-bit tokens, with 16 tokens per warp and tile: K rows are the A
// operand of S = K q^T, fetched transposed V rows that of O^T = V^T p^T, both in bf16 with float32
// sums. To keep the precision of p, it is split into a bf16 number and a bf16 rest. With at most
// four query heads per KV head the rest travels in columns 4-7 of the same multiply.
#pragma once

#include "oscar/cuda/decode_copy.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct RowWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr bool kShared = kCols == 4;
  static constexpr int kSteps = kDim / 16;

  uint32_t q[kSteps][2];
  WarpResult<kSteps> result;
  float p_cur[4];  // probabilities of the current tile
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
    const int column = kShared ? (g & 3) : place.half * 8 + g;
    const bool present = column < p.group_size;
    const int64_t query = (static_cast<int64_t>(piece.request) * p.kv_heads + head) * p.group_size +
                          (present ? column : 0);
    const uint16_t* from = p.q + query * kDim + 2 * t;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      q[s][0] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s) : 0;
      q[s][1] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s + 8) : 0;
      result.o[s][0] = result.o[s][1] = result.o[s][2] = result.o[s][3] = 0;
    }
    result.max[0] = result.max[1] = kNoScore;
    result.sum[0] = result.sum[1] = 0;
  }

  __device__ __forceinline__ void Scores(uint32_t stage, int left) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    float acc[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4(a, stage + key_row + (((2 * s + key_chunk) ^ swizzle) << 4));
      MultiplyBFloat16(acc, a, q[s][0], q[s][1]);
    }
    bool high = false;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = g + 8 * (i >> 1);
      acc[i] = token < left ? acc[i] * scale : -INFINITY;
      high |= acc[i] - result.max[i & 1] > kLazyBits;
    }
    if (__any_sync(~0U, high)) Rescale(acc);
#pragma unroll
    for (int i = 0; i < 4; ++i) p_cur[i] = Exp2(acc[i] - result.max[i & 1]);
    // Columns 4-7 repeat 0-3: counted once.
    if (!kShared || (threadIdx.x & 2) == 0) {
      result.sum[0] += p_cur[0] + p_cur[2];
      result.sum[1] += p_cur[1] + p_cur[3];
    }
  }

  __device__ void Rescale(const float (&raw)[4]) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const float top = ColumnMax(fmaxf(result.max[c], fmaxf(raw[c], raw[c + 2])), false);
      const float factor = Exp2(result.max[c] - top);
      result.max[c] = top;
      result.sum[c] *= factor;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        result.o[i][c] *= factor;
        result.o[i][c + 2] *= factor;
      }
    }
  }

  __device__ __forceinline__ void AddValues(uint32_t stage) {
    constexpr int kTerms = kShared ? 1 : 2;
    uint32_t b[kTerms][2];
    const bool rest_lane = kShared && (threadIdx.x & 2) != 0;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const float x = p_cur[2 * row], y = p_cur[2 * row + 1];
      const uint32_t head = PackBFloat16(x, y);
      const uint32_t rest = PackBFloat16(x - LowBFloat16(head), y - HighBFloat16(head));
      b[0][row] = TransposeMatrix(rest_lane ? rest : head);
      if constexpr (!kShared) b[1][row] = TransposeMatrix(rest);
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4Transposed(a, stage + value_row + (((2 * s + value_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int term = 0; term < kTerms; ++term) {
        MultiplyBFloat16(result.o[s], a, b[term][0], b[term][1]);
      }
    }
  }

  __device__ __forceinline__ void Finish() {
    result.sum[0] = ColumnSum(result.sum[0]);
    result.sum[1] = ColumnSum(result.sum[1]);
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
};

}  // namespace oscar
