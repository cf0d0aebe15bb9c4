// What one warp does with a tile of 2-bit tokens (see decode_quantised.cuh for the operand maps).
// Device code.
#pragma once

#include "oscar/cuda/decode_copy.cuh"
#include "oscar/cuda/decode_fields.cuh"
#include "oscar/cuda/decode_quantised_columns.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct QuantisedWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr bool kShared = Traits::kSharedColumns;  // columns 4-7 repeat 0-3
  static constexpr int kTiles = Traits::kColumnTiles;
  static constexpr int kSteps = kDim / 16;
  static constexpr bool kBorders = Traits::kWarps == 16;
  using Columns = QuantisedColumns<kDim, kGroups, kShared>;
  // Probabilities of a lane may add up to this much before the maxima are raised.
  static constexpr float kMostLazy = 16;
  static_assert(kTiles * Columns::kScoreTiles * 4 <= kMostLazy, "raising maxima may not suffice");
  static constexpr float kMostScale = 0x1p11F;

  Columns columns[kTiles];
  bool fresh = true;  // no score yet
  // Power of two on p s, so that it fills half precision: the sum of a lane's value scales times it
  // is at most kMostScale. Before the first tile no sum fits, not even zero.
  float boost = INFINITY;

  uint32_t key_offset, value_offset;
  uint32_t scale_offset;  // of the lane's first token and head in the (scale, zero) of a stage
  uint32_t raise = 16;    // for CutKeyField

  __device__ QuantisedWarp(const DecodeParams& p, const PlanPiece& piece, const WarpPlace& place) {
    uint32_t own = threadIdx.x & 31;
    PinLane(own);  // what follows is not worth registers while another piece is read
    const int lane = static_cast<int>(own);
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int first =
        place.part * kQuantisedWarpTokens + (kShared ? ((lane & 2) >> 1) * 16 : 0) + (lane >> 2);
    scale_offset = static_cast<uint32_t>((first << ScaleRowLog2<kHeadsLog2>(p)) +
                                         place.head_in_block *
                                             (p.scale_kind == ScaleKind::kF32 ? 8 : 4) * p.groups);
    if (SwizzlesScales<kHeadsLog2>(p)) {
      scale_offset ^=
          static_cast<uint32_t>(ScaleSwizzle<kShared>(ScaleRowLog2<kHeadsLog2>(p), first) << 4);
    }
    const int row = lane & 7, matrix = lane >> 3;
    // Rows of the lane in the codes of a tile, and the chunk of the warp's head.
    const int chunks_log2 = ChunksLog2(p);
    const int token = place.part * kQuantisedWarpTokens + row;
    const int head_chunk = place.head_in_block * (kDim / 64);
    if constexpr (kDim == 64) {
      key_offset = CodeOffset(token + matrix * 8, head_chunk, chunks_log2);
      value_offset = key_offset;
    } else {
      key_offset = CodeOffset(token + (matrix & 1) * 8, head_chunk + (matrix >> 1), chunks_log2);
      value_offset = CodeOffset(token + (matrix >> 1) * 8, head_chunk + (matrix & 1), chunks_log2);
    }
    const char* rows[kTiles];
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      const int head = (piece.head_block << heads_log2) + place.head_in_block;
      rows[c] = Columns::Queries::Row(p, piece.request, head, (place.columns + c) * 8);
      Pin(rows[c]);
    }
    scale_offset += 2 * Traits::kCodeBytes;
    PinLane(key_offset);
    PinLane(value_offset);
    PinLane(scale_offset);
    // With a register to spare the multiplication stays one: a shift would take the logic units.
    if constexpr (Traits::kWarps == 8) PinLane(raise);
    WaitForPredecessors();  // nothing before depends on what they write
#pragma unroll
    for (int c = 0; c < kTiles; ++c) columns[c].Start(p, rows[c]);
  }

  __device__ __forceinline__ static int ChunksLog2(const DecodeParams& p) {
    return HeadsLog2<kHeadsLog2>(p) + (kDim == 64 ? 0 : kDim == 128 ? 1 : 2);
  }
  // Bytes of the codes of 16 tokens.
  __device__ __forceinline__ static uint32_t SixteenRows(const DecodeParams& p) {
    return 256U << ChunksLog2(p);
  }

  // Codes times queries of the warp's 32 tokens.
  __device__ __forceinline__ void MultiplyKeys(
      const DecodeParams& p, uint32_t stage, typename Columns::Products (&products)[kTiles]) const {
#pragma unroll
    for (int i = 0; i < kTiles * 2 * kGroups * 4; ++i) {
      products[i / 4 / kGroups / 2][i / 4 / kGroups % 2][i / 4 % kGroups][i % 4] = 0;
    }
    const auto multiply = [&](int half, int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        const uint32_t(&b)[2] = columns[c].q.b[step];
        MultiplyHalf(products[c][half][field % kGroups], a0, a1, a2, a3, b[0], b[1]);
      }
    };
    if constexpr (kDim == 64) {
      uint32_t r[4];
      LoadMatrix4(r, stage + key_offset);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ForShortKeyFields(r[2 * half], r[2 * half + 1], raise,
                          [&](int field, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                            multiply(half, field, field, a0, a1, a2, a3);
                          });
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[2][4];
        LoadMatrix4(r[0], (stage + key_offset) ^ (chunk * 32));
        LoadMatrix4(r[1], (stage + key_offset + SixteenRows(p)) ^ (chunk * 32));
        ForKeyFields<kBorders>(
            r, raise, p.blocks,
            [&](int half, int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
              multiply(half, chunk * 8 + step, step & 3, a0, a1, a2, a3);
            });
      }
    }
  }

  // o += V^T p of 16 tokens; b: p of each column tile as a B operand.
  __device__ __forceinline__ void AddValues(const DecodeParams& p, uint32_t values, int half,
                                            const uint32_t (&b)[kTiles][kGroups][2]) {
    constexpr bool kWholeBytes = Columns::kWholeBytes;
    const auto multiply = [&](int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        const uint32_t(&f)[2] = b[c][kGroups == 1 ? 0 : field];
        MultiplyHalf(columns[c].o[step], a0, a1, a2, a3, f[0], f[1]);
      }
    };
    if constexpr (kDim == 64) {
      // Rows 0-7 of a step: even bytes, rows 8-15: odd bytes.
      uint32_t r[4];
      LoadMatrix4Transposed(r, values + value_offset);
      const uint32_t r0 = half == 0 ? r[0] : r[2], r1 = half == 0 ? r[1] : r[3];
      const uint32_t s0 = OddBytes(r0), s1 = OddBytes(r1);
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        const uint32_t mask = 0x00030003U << (2 * field);
        const uint32_t odd_mask = kWholeBytes && field == 3 ? ~0U : mask;
        multiply(field, field, r0 & mask, s0 & odd_mask, r1 & mask, s1 & odd_mask);
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[4];
        LoadMatrix4Transposed(r, (values + value_offset + half * SixteenRows(p)) ^ (chunk * 32));
        ForFields<kWholeBytes, kBorders>(
            r, p.blocks, [&](int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
              multiply(chunk * 8 + step, step & 3, a0, a1, a2, a3);
            });
      }
    }
  }

  __device__ __forceinline__ bool ScalesFit(float sum) const { return sum * boost <= kMostScale; }

  // Raises maxima and the boost so that no score is positive and every scale fits. `scale_sum`: of
  // the lane's values.
  __device__ void Rescale(float scale_sum, typename Columns::Scores (&score)[kTiles]) {
    // All maxima before the first is used: their shuffles overlap.
    float rise[kTiles][2];
#pragma unroll
    for (int c = 0; c < kTiles; ++c) Columns::GetRise(fresh, score[c], rise[c]);
    scale_sum = fmaxf(scale_sum, __shfl_xor_sync(~0U, scale_sum, 1));
    const float scale = ColumnMax(scale_sum, true);
    float boost_factor = 1;
    bool some = false;
    if (!ScalesFit(scale)) {
      // Twice the next power of two; p scale boost stays below kMostLazy kMostScale = 2^15.
      const float bounded = fminf(fmaxf(scale, 0x1p-100F), 0x1p100F);
      const uint32_t power = (__float_as_uint(bounded) + 0x007fffffU) & 0x7f800000U;
      const float wanted = kMostScale / 2 * InversePower(__uint_as_float(power));
      boost_factor = wanted * InversePower(fminf(boost, 0x1p127F));
      boost = wanted;
    }
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      some |= columns[c].Raise(fresh, rise[c], boost_factor, score[c]);
    }
    fresh = fresh && !some;
  }

  // One tile of `tile_tokens` tokens, of which `left` exist; at least as many: all.
  __device__ __forceinline__ void Tile(const DecodeParams& p, uint32_t stage, int left,
                                       int tile_tokens) {
    typename Columns::Products products[kTiles];
    MultiplyKeys(p, stage, products);
    typename Columns::Scales scales;
    scales.Load(p, stage + scale_offset, Traits::kScaleBytes,
                HeadsLog2<kHeadsLog2>(p));
    typename Columns::Scores score[kTiles];
#pragma unroll
    for (int c = 0; c < kTiles; ++c) columns[c].GetScores(products[c], scales, score[c]);
    if (left < tile_tokens) {
      EndOfBlock(p.blocks);  // rather a branch than predicates in every tile
      const WarpPlace place(Traits::kWarps, HeadsLog2<kHeadsLog2>(p), Traits::kColumnWarpsLog2);
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        Columns::Mask(left - place.part * kQuantisedWarpTokens, score[c]);
      }
    }
    // Sums bound every probability and every scale, and take one comparison each.
    const float scale_sum = scales.SumOfValues();
    typename Columns::Scores probability[kTiles];
    float sums[kTiles][2];
    const auto exponentiate = [&] {
      float total = Columns::Exponentiate(score[0], probability[0], sums[0]);
#pragma unroll
      for (int c = 1; c < kTiles; ++c) {
        total += Columns::Exponentiate(score[c], probability[c], sums[c]);
      }
      return total;
    };
    const bool high = !(exponentiate() <= kMostLazy) || !ScalesFit(scale_sum);
    if (__any_sync(~0U, high)) {
      Rescale(scale_sum, score);
      exponentiate();
    }

    typename Columns::Weights b[kTiles];
#pragma unroll
    for (int c = 0; c < kTiles; ++c) {
      columns[c].Weigh(probability[c], sums[c], scales, boost, b[c]);
    }
    AddTile(p, stage + Traits::kCodeBytes, b);
  }

  // o += V^T p of the warp's 32 tokens.
  __device__ __forceinline__ void AddTile(const DecodeParams& p, uint32_t values,
                                          const typename Columns::Weights (&b)[kTiles]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t here[kTiles][kGroups][2];
#pragma unroll
      for (int i = 0; i < kTiles * kGroups * 2; ++i) {
        const int c = i / 2 / kGroups, group = i / 2 % kGroups;
        const uint32_t weights = b[c][kShared ? 0 : half][group][i % 2];
        // Shared columns: 4-7 hold the weights of the second half of the tokens.
        here[c][group][i % 2] =
            kShared && half == 1 ? __shfl_xor_sync(~0U, weights, 16) : weights;
      }
      AddValues(p, values, half, here);
    }
  }

  __device__ __forceinline__ void Centre() {
#pragma unroll
    for (int c = 0; c < kTiles; ++c) columns[c].Centre();
  }

  __device__ __forceinline__ void Finish(WarpResult<kSteps> (&result)[kTiles]) {
    const float down = InversePower(boost);
#pragma unroll
    for (int c = 0; c < kTiles; ++c) columns[c].Finish(fresh, down, result[c]);
  }

  // Writes numbers c and c + 2 of steps 4 i + low, x[i], to their channels of a row.
  template <int kCount>
  __device__ __forceinline__ static void Store(float* row, const float (&x)[kCount][4], int c,
                                               int low) {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    float* const at = row + kDim / 4 * low + 2 * g;
    if constexpr (kDim == 64) {
      *reinterpret_cast<float2*>(at) = make_float2(x[0][c], x[0][c + 2]);
    } else {
#pragma unroll
      for (int i = 0; i < kCount; i += 2) {
        *reinterpret_cast<float2*>(at + 16 * i) = make_float2(x[i][c], x[i + 1][c]);
        *reinterpret_cast<float2*>(at + 16 * i + 16) = make_float2(x[i][c + 2], x[i + 1][c + 2]);
      }
    }
  }
};

}  // namespace oscar
