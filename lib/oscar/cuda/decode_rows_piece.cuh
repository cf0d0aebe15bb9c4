// Partial attention over bf16 tokens. Device code.
//
// Same division of work as for 2-bit tokens, with 16 tokens per warp and tile: K rows are the A
// operand of S = K q^T, fetched transposed V rows that of O^T = V^T p^T, both in bf16 with float32
// sums. To keep the precision of p, it is split into a bf16 number and a bf16 rest. With at most
// four query heads per KV head the rest travels in columns 4-7 of the same multiply.
#pragma once

#include "oscar/cuda/decode_quantised.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

// Copies K and V rows, in turn, of tile after tile. A thread copies the same 16-byte chunk of the
// block's heads of every few tokens.
template <typename Traits, int kDim, int kHeadsLog2>
class RowLoader {
  static constexpr int kChunksLog2 = kDim == 64 ? 3 : (kDim == 128 ? 4 : 5);

 public:
  __device__ RowLoader(const DecodeParams& p, const PlanPiece& piece, char* shared, char* ring)
      : p_(p), stages_(SharedAddress(shared)), ring_(SharedAddress(ring)), left_(piece.tokens) {
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int chunk = static_cast<int>(threadIdx.x) & ((1 << (heads_log2 + kChunksLog2)) - 1);
    k_rows_ =
        p.k_rows + static_cast<int64_t>(piece.head_block << heads_log2) * (kDim * 2) + chunk * 16;
  }

  // K of the next tile, or V of the same tile after it.
  __device__ __forceinline__ void CopyNext() {
    if (left_ <= 0) return;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p_);
    const int tid = static_cast<int>(threadIdx.x);
    const int chunk = tid & ((1 << (heads_log2 + kChunksLog2)) - 1);
    const int first = tid >> (heads_log2 + kChunksLog2);
    const uint32_t stage =
        stages_ + static_cast<uint32_t>(stage_ * Traits::kRowStageBytes +
                                        (chunk >> kChunksLog2) * Traits::kWarpRowBytes);
    const uint32_t ring =
        ring_ + (static_cast<uint32_t>(ring_tile_ * tile_tokens() + first) << p_.row_slot_log2);
    const char* const source = value_ ? k_rows_ + (p_.v_rows - p_.k_rows) : k_rows_;
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) {
      const int step = i * (Traits::kThreads >> (heads_log2 + kChunksLog2));
      const int token = first + step;
      const uint32_t slot = ReadSlot(ring + (static_cast<uint32_t>(step) << p_.row_slot_log2));
      const uint32_t to =
          stage + static_cast<uint32_t>(((token >> 4) << heads_log2) * Traits::kWarpRowBytes +
                                        (token & 15) * (kDim * 2) +
                                        ((chunk & ((1 << kChunksLog2) - 1)) ^ (token & 7)) * 16);
      CopyAsync<16>(to, source + static_cast<uint64_t>(slot) * p_.row_stride, token < left_);
    }
    if (value_) {
      left_ -= tile_tokens();
      ring_tile_ = ring_tile_ + 1 == Traits::kRowSlotTiles ? 0 : ring_tile_ + 1;
    }
    value_ = !value_;
    stage_ = stage_ + 1 == Traits::kRowStages ? 0 : stage_ + 1;
  }

  __device__ __forceinline__ int tile_tokens() const {
    return (Traits::kWarps * kRowWarpTokens) >> HeadsLog2<kHeadsLog2>(p_);
  }

 private:
  const DecodeParams& p_;
  uint32_t stages_, ring_;
  int left_;
  const char* k_rows_;
  int stage_ = 0, ring_tile_ = 0;
  bool value_ = false;
};

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct RowWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr int kColTiles = Traits::kColTiles;
  static constexpr bool kShared = kCols == 4;
  static constexpr int kSteps = kDim / 16;

  uint32_t q[kColTiles][kSteps][2];
  float o[kColTiles][kSteps][4];
  float max[kColTiles][2];
  float sum[kColTiles][2];
  float p_cur[kColTiles][4];  // probabilities of the current tile
  float scale;
  int head_in_block, part;
  uint32_t key_row, value_row;  // row offset in the stage
  uint32_t key_chunk, value_chunk, swizzle;

  __device__ RowWarp(const DecodeParams& p, const PlanPiece& piece) : scale(p.logit_scale) {
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    head_in_block = warp & ((1 << heads_log2) - 1);
    part = warp >> heads_log2;
    const int row = lane & 7, matrix = lane >> 3;
    const uint32_t base = static_cast<uint32_t>(warp * Traits::kWarpRowBytes);
    key_row = base + ((matrix & 1) * 8 + row) * (kDim * 2);
    key_chunk = matrix >> 1;
    value_row = base + ((matrix >> 1) * 8 + row) * (kDim * 2);
    value_chunk = matrix & 1;
    swizzle = row;
    const int head = (piece.head_block << heads_log2) + head_in_block;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
      const int column = kShared ? (g & 3) : tile * 8 + g;
      const bool present = column < p.group_size;
      const int64_t query =
          (static_cast<int64_t>(piece.request) * p.kv_heads + head) * p.group_size +
          (present ? column : 0);
      const uint16_t* from = p.q + query * kDim + 2 * t;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        q[tile][s][0] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s) : 0;
        q[tile][s][1] = present ? *reinterpret_cast<const uint32_t*>(from + 16 * s + 8) : 0;
        o[tile][s][0] = o[tile][s][1] = o[tile][s][2] = o[tile][s][3] = 0;
      }
      max[tile][0] = max[tile][1] = kNoScore;
      sum[tile][0] = sum[tile][1] = 0;
    }
  }

  __device__ __forceinline__ void Scores(uint32_t stage, int left) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    float acc[kColTiles][4];
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile)
      acc[tile][0] = acc[tile][1] = acc[tile][2] = acc[tile][3] = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4(a, stage + key_row + (((2 * s + key_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        MultiplyBFloat16(acc[tile], a, q[tile][s][0], q[tile][s][1]);
      }
    }
    bool high = false;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = g + 8 * (i >> 1);
        acc[tile][i] = token < left ? acc[tile][i] * scale : -INFINITY;
        high |= acc[tile][i] - max[tile][i & 1] > kLazyBits;
      }
    }
    if (__any_sync(~0U, high)) Rescale(acc);
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) p_cur[tile][i] = Exp2(acc[tile][i] - max[tile][i & 1]);
      // Columns 4-7 repeat 0-3: counted once.
      if (!kShared || (threadIdx.x & 2) == 0) {
        sum[tile][0] += p_cur[tile][0] + p_cur[tile][2];
        sum[tile][1] += p_cur[tile][1] + p_cur[tile][3];
      }
    }
  }

  __device__ void Rescale(const float (&raw)[kColTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float top =
            ColumnMax(fmaxf(max[tile][c], fmaxf(raw[tile][c], raw[tile][c + 2])), false);
        const float factor = Exp2(max[tile][c] - top);
        max[tile][c] = top;
        sum[tile][c] *= factor;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          o[tile][i][c] *= factor;
          o[tile][i][c + 2] *= factor;
        }
      }
    }
  }

  __device__ __forceinline__ void AddValues(uint32_t stage) {
    constexpr int kTerms = kShared ? 1 : 2;
    uint32_t b[kColTiles][kTerms][2];
    const bool rest_lane = kShared && (threadIdx.x & 2) != 0;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float x = p_cur[tile][2 * row], y = p_cur[tile][2 * row + 1];
        const uint32_t head = PackBFloat16(x, y);
        const uint32_t rest = PackBFloat16(x - LowBFloat16(head), y - HighBFloat16(head));
        b[tile][0][row] = TransposeMatrix(rest_lane ? rest : head);
        if constexpr (!kShared) b[tile][1][row] = TransposeMatrix(rest);
      }
    }
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      uint32_t a[4];
      LoadMatrix4Transposed(a, stage + value_row + (((2 * s + value_chunk) ^ swizzle) << 4));
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
        for (int term = 0; term < kTerms; ++term) {
          MultiplyBFloat16(o[tile][s], a, b[tile][term][0], b[tile][term][1]);
        }
      }
    }
  }

  __device__ void Finish(char* shared) const {
    const MergeArea<Traits, kColTiles> area(shared);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = tile * 8 + 2 * t + c;
        const float column_sum = ColumnSum(sum[tile][c]);
        if (g == 0) {
          area.max[warp * 8 * kColTiles + column] = max[tile][c];
          area.sum[warp * 8 * kColTiles + column] = column_sum;
        }
        float* const out = area.Column(warp, column);
#pragma unroll
        for (int s = 0; s < kSteps; ++s) {
          out[16 * s + g] = o[tile][s][c];
          out[16 * s + 8 + g] = o[tile][s][c + 2];
        }
      }
    }
  }
};

// One piece of bf16 tokens, by the whole block. Steps alternate between the K and the V rows of a
// tile.
template <int kDim, int kCols, int kGroups, int kHeadsLog2>
__device__ __forceinline__ void RowsPiece(const DecodeParams& p, const PlanPiece& piece,
                                          char* shared) {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static_assert(Traits::kRowStages == 3);
  constexpr int kAhead = 4;  // tiles of slot numbers
  static_assert(Traits::kRowSlotTiles >= kAhead + 2);
  char* const ring = shared + Traits::kTileBytes + Traits::kBarrierBytes;
  RowLoader<Traits, kDim, kHeadsLog2> rows(p, piece, shared, ring);
  SlotCopier slots(p.row_slots, piece.slot_begin, piece.tokens, rows.tile_tokens(), p.row_slot_log2,
                   Traits::kRowSlotTiles, SharedAddress(ring));
  for (int tile = 0; tile < kAhead; ++tile) slots.CopyNext();
  CommitCopies();
  WaitCopies<0>();
  WaitForPredecessors();
  __syncthreads();
  for (int step = 0; step < 2; ++step) {
    rows.CopyNext();
    CommitCopies();
  }
  RowWarp<kDim, kCols, kGroups, kHeadsLog2> warp(p, piece);
  const uint32_t stages = SharedAddress(shared);
  uint32_t stage = stages;
  const auto next = [&] {
    stage += Traits::kRowStageBytes;
    if (stage == stages + Traits::kRowStages * Traits::kRowStageBytes) stage = stages;
  };
  int left = piece.tokens - warp.part * kRowWarpTokens;
  for (int done = 0; done < piece.tokens; done += rows.tile_tokens()) {
    WaitCopies<1>();
    __syncthreads();
    rows.CopyNext();
    slots.CopyNext();
    CommitCopies();
    warp.Scores(stage, left);
    next();
    WaitCopies<1>();
    __syncthreads();
    rows.CopyNext();
    CommitCopies();
    warp.AddValues(stage);
    next();
    left -= rows.tile_tokens();
  }
  WaitCopies<0>();
  __syncthreads();
  warp.Finish(shared);
  __syncthreads();
  MergeWarps<Traits, kDim, kCols, kHeadsLog2>(p, piece, shared);
}

}  // namespace oscar
