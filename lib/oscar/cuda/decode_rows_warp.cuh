// Partial attention over bf16 tokens. Device code.
//
// Same division of work as for 2-bit tokens, with 16 tokens per warp and tile: K rows are the A
// operand of S = K q^T, fetched transposed V rows that of O^T = V^T p^T, both in bf16 with float32
// sums. Columns 2t and 2t + 1 are those of query heads t and t + 4. To keep the precision of p, it
// is split into a bf16 number and a bf16 rest. With at most four query heads per KV head both
// columns belong to head t, and the rest travels in the second one of the same multiply; with more
// than eight, rows serve two column tiles.
#pragma once

#include "oscar/cuda/decode_copy.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct RowWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr int kCount = Traits::kLaneQueries;
  static constexpr int kTiles = Traits::kColumnTiles;
  static constexpr int kSteps = kDim / 16;

  uint32_t q[kTiles][kSteps][2];
  float o[kTiles][kSteps][4];
  float max[kTiles][kCount], sum[kTiles][kCount];
  float p_cur[kTiles][kCount][2];  // probabilities of the current tile
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
      const int column = (place.columns + tile) * 8 + (g >> 1) + (kCount == 1 ? 0 : 4 * (g & 1));
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
#pragma unroll
      for (int c = 0; c < kCount; ++c) {
        max[tile][c] = kNoScore;
        sum[tile][c] = 0;
      }
#pragma unroll
      for (int i = 0; i < 4 * kSteps; ++i) o[tile][i / 4][i % 4] = 0;
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
    for (int tile = 0; tile < kTiles; ++tile) Weigh(tile, acc[tile], left);
  }

  __device__ __forceinline__ void AddValues(uint32_t stage) {
    constexpr int kTerms = kCount;
    uint32_t b[kTiles][kTerms][2];
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) {
      const int tile = i >> 1, row = i & 1;
      const float x = p_cur[tile][0][row];
      if constexpr (kCount == 1) {
        const float head = LowBFloat16(PackBFloat16(x, 0));
        b[tile][0][row] = TransposeMatrix(PackBFloat16(head, x - head));
      } else {
        const float y = p_cur[tile][kCount - 1][row];
        const uint32_t head = PackBFloat16(x, y);
        b[tile][0][row] = TransposeMatrix(head);
        b[tile][kTerms - 1][row] =
            TransposeMatrix(PackBFloat16(x - LowBFloat16(head), y - HighBFloat16(head)));
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4Transposed(a, stage + value_row + (((2 * s + value_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int i = 0; i < kTiles * kTerms; ++i) {
        const uint32_t(&f)[2] = b[i / kTerms][i % kTerms];
        MultiplyBFloat16(o[i / kTerms][s], a, f[0], f[1]);
      }
    }
  }

  // What PieceSum adds up, as of QuantisedWarp.
  __device__ __forceinline__ static float Down() { return 1; }
  __device__ __forceinline__ float Max(int tile, int c) const { return max[tile][c]; }
  __device__ __forceinline__ void AddLanes(int tile, int c, float& total,
                                           float (&zeros)[kGroups]) const {
    total = ColumnSum(sum[tile][c]);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) zeros[group] = 0;
    // The lanes with g = 1 leave the zero.
    if (kGroups == 1 && (threadIdx.x & 4) != 0) total = 0;
  }
  __device__ __forceinline__ float4 Unit(int tile, int c, int steps, int half) const {
    const auto number = [&](int s) {
      const float(&x)[4] = o[tile][4 * steps + s];
      return kCount == 1 ? x[2 * half] + x[2 * half + 1] : x[c + 2 * half];
    };
    return make_float4(number(0), number(1), number(2), number(3));
  }
  __device__ __forceinline__ static void Finish(float4&, const float (&)[kGroups], int, int) {}
  __device__ __forceinline__ static void Store(float* row, const float4& x, int g, int steps,
                                               int half) {
    float* const at = row + 64 * steps + 8 * half + g;
    at[0] = x.x;
    at[16] = x.y;
    at[32] = x.z;
    at[48] = x.w;
  }

 private:
  // From products to probabilities; `left` tokens of the warp's exist.
  __device__ __forceinline__ void Weigh(int tile, const float (&acc)[4], int left) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    float score[kCount][2];
    bool high = false;
#pragma unroll
    for (int i = 0; i < 2 * kCount; ++i) {
      const int c = i / 2, row = i % 2;
      score[c][row] = g + 8 * row < left ? acc[c + 2 * row] * scale : -INFINITY;
      high |= score[c][row] - max[tile][c] > kLazyBits;
    }
    if (__any_sync(~0U, high)) {
#pragma unroll
      for (int c = 0; c < kCount; ++c) Rescale(tile, c, fmaxf(score[c][0], score[c][1]));
    }
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      float(&p)[2] = p_cur[tile][c];
      p[0] = Exp2(score[c][0] - max[tile][c]);
      p[1] = Exp2(score[c][1] - max[tile][c]);
      sum[tile][c] += p[0] + p[1];
    }
  }

  // `largest`: score of the lane's tokens.
  __device__ __forceinline__ void Rescale(int tile, int c, float largest) {
    const float top = ColumnMax(fmaxf(max[tile][c], largest));
    const float factor = Exp2(max[tile][c] - top);
    max[tile][c] = top;
    sum[tile][c] *= factor;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      float(&x)[4] = o[tile][s];
      x[c] *= factor;
      x[c + 2] *= factor;
      if (kCount == 1) {
        x[1] *= factor;
        x[3] *= factor;
      }
    }
  }
};

}  // namespace oscar
