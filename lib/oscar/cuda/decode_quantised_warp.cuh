// What one warp does with a tile of 2-bit tokens (see decode_quantised.cuh for the operand maps).
// Device code.
#pragma once

#include "oscar/cuda/decode_copy.cuh"
#include "oscar/cuda/decode_fields.cuh"
#include "oscar/cuda/decode_quantised.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct QuantisedWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr bool kShared = kCols == 4;          // columns 4-7 repeat 0-3
  static constexpr int kScoreTiles = kShared ? 1 : 2;  // of 16 tokens
  static constexpr int kSteps = kDim / 16;
  // Field 3 of the values' odd bytes is added up with the bytes' other fields, which saves cutting
  // it out; Finish takes those off. Several groups have a weight per field.
  static constexpr bool kWholeBytes = kGroups == 1;

  QuantisedQueries<kDim, kGroups, kShared> q;
  float o[kSteps][4];
  float max[2];       // running; zero until there is a score
  bool fresh = true;  // no score yet
  float sum[2];
  float zero[kGroups][2];  // sum of p s z, boosted
  float boost = 1;         // power of two on p s, so that it fills half precision
  float scale_limit = -1;  // largest value scale that `boost` allows

  uint32_t key_offset, value_offset;
  uint32_t scale_offset;  // of the lane's first token and head in the (scale, zero) of a stage
  uint32_t raise = 16;    // for CutKeyField

  __device__ QuantisedWarp(const DecodeParams& p, const PlanPiece& piece, const WarpPlace& place) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    const int first =
        place.part * kQuantisedWarpTokens + (kShared ? ((lane & 2) >> 1) * 16 : 0) + (lane >> 2);
    scale_offset = static_cast<uint32_t>((first << p.scale_row_log2) +
                                         place.head_in_block *
                                             (p.scale_kind == ScaleKind::kF32 ? 8 : 4) * p.groups);
    if (SwizzlesScales<kHeadsLog2>(p))
      scale_offset ^= static_cast<uint32_t>(ScaleSwizzle<kShared>(first) << 4);
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
    q.Load(p, piece.request, (piece.head_block << heads_log2) + place.head_in_block, place.half);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      max[c] = 0;
      sum[c] = 0;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zero[group][c] = 0;
    }
#pragma unroll
    for (int i = 0; i < kSteps; ++i) o[i][0] = o[i][1] = o[i][2] = o[i][3] = 0;
    PinLane(key_offset);
    PinLane(value_offset);
    PinLane(scale_offset);
    // With a register to spare the multiplication stays one: a shift would take the logic units.
    if constexpr (Traits::kWarps == 8) PinLane(raise);
  }

  __device__ __forceinline__ static int ChunksLog2(const DecodeParams& p) {
    return HeadsLog2<kHeadsLog2>(p) + (kDim == 64 ? 0 : kDim == 128 ? 1 : 2);
  }
  // Bytes of the codes of 16 tokens.
  __device__ __forceinline__ static uint32_t SixteenRows(const DecodeParams& p) {
    return 256U << ChunksLog2(p);
  }

  // acc[score tile][group] = codes . q of the warp's 32 tokens.
  __device__ __forceinline__ void Scores(const DecodeParams& p, uint32_t stage,
                                         float (&acc)[kScoreTiles][kGroups][4]) const {
    float both[2][kGroups][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int chain = 0; chain < kGroups; ++chain) {
        float(&a)[4] = both[half][chain];
        a[0] = a[1] = a[2] = a[3] = 0;
      }
    }
    const auto multiply = [&](int half, int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
      MultiplyHalf(both[half][field % kGroups], a0, a1, a2, a3, q.b[step][0], q.b[step][1]);
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
        ForKeyFields(r, raise,
                     [&](int half, int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                       multiply(half, chunk * 8 + step, step & 3, a0, a1, a2, a3);
                     });
      }
    }
    const bool second = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kShared) {
          acc[0][group][i] = second ? both[1][group][i] : both[0][group][i];
        } else {
          acc[0][group][i] = both[0][group][i];
          acc[1][group][i] = both[1][group][i];
        }
      }
    }
  }

  // o += V^T p of 16 tokens; b0, b1: p as a B operand.
  __device__ __forceinline__ void AddValues(const DecodeParams& p, uint32_t values, int half,
                                            const uint32_t (&b)[kGroups][2]) {
    const auto multiply = [&](int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
      const uint32_t(&f)[2] = b[kGroups == 1 ? 0 : field];
      MultiplyHalf(o[step], a0, a1, a2, a3, f[0], f[1]);
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
        ForFields<kWholeBytes>(r,
                               [&](int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                                 multiply(chunk * 8 + step, step & 3, a0, a1, a2, a3);
                               });
      }
    }
  }

  // Raises maxima and the boost so that no score is positive and every scale fits.
  __device__ void Rescale(float (&score)[kScoreTiles][4], float largest_scale) {
    float boost_factor = 1;
    bool some = false;
    largest_scale = fmaxf(largest_scale, __shfl_xor_sync(~0U, largest_scale, 1));
    const float scale = ColumnMax(largest_scale, true);
    if (scale > scale_limit) {
      // Twice the next power of two; p scale boost stays below 2^kLazyBits 2^11 = 2^15.
      const float bounded = fminf(fmaxf(scale, 0x1p-100F), 0x1p100F);
      const uint32_t power = (__float_as_uint(bounded) + 0x007fffffU) & 0x7f800000U;
      scale_limit = 2 * __uint_as_float(power);
      const float wanted = 0x1p11F / scale_limit;
      boost_factor = wanted / boost;
      boost = wanted;
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float rise = fresh ? -INFINITY : 0.0F;
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
        rise = fmaxf(rise, fmaxf(score[s][c], score[s][c + 2]));
      }
      rise = ColumnMax(rise, kShared);
      if (rise == -INFINITY) continue;  // nothing but tokens that do not exist, in every column
      some = true;
      // The new maximum is rounded; scores follow the rounded one.
      const float top = max[c] + rise;
      const float step = top - max[c];
      const float factor = fresh ? 1.0F : Exp2(-step);
      max[c] = top;
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
        score[s][c] -= step;
        score[s][c + 2] -= step;
      }
      sum[c] *= factor;
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zero[group][c] *= factor * boost_factor;
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        o[i][c] *= factor * boost_factor;
        o[i][c + 2] *= factor * boost_factor;
      }
    }
    fresh = fresh && !some;
  }

  // One tile: `left` tokens of it from the warp's first on exist (any number; at least 32: all).
  __device__ __forceinline__ void Tile(const DecodeParams& p, uint32_t stage, int left) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
    float acc[kScoreTiles][kGroups][4];
    Scores(p, stage, acc);
    TileScales<kScoreTiles, kGroups> tile_scales;
    tile_scales.Load(p, stage + 2 * Traits::kCodeBytes + scale_offset, Traits::kScaleBytes,
                     HeadsLog2<kHeadsLog2>(p));

    // Scores minus the running maximum.
    float score[kScoreTiles][4];
    float largest_scale = tile_scales.value[0][0][0].scale;
    bool high = false;
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const ScaleZero(&key)[kGroups] = tile_scales.key[s][row];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          largest_scale = fmaxf(largest_scale, tile_scales.value[s][row][group].scale);
        }
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          float x = -max[c];
#pragma unroll
          for (int group = kGroups - 1; group >= 0; --group) {
            const float dot =
                fmaf(acc[s][group][2 * row + c], q.factor[c], -key[group].zero * q.sum[group][c]);
            x = fmaf(key[group].scale, dot, x);
          }
          score[s][2 * row + c] = x;
        }
      }
    }
    if (left < kQuantisedWarpTokens) {
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = (kShared ? (t >> 1) * 16 : s * 16) + g + 8 * (i >> 1);
          score[s][i] = token < left ? score[s][i] : -INFINITY;
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int i = 0; i < 4; ++i) high |= score[s][i] > kLazyBits;
    }
    high |= largest_scale > scale_limit;
    if (__any_sync(~0U, high)) Rescale(score, largest_scale);

    uint32_t b[kScoreTiles][kGroups][2];
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float p0 = Exp2(score[s][2 * row]);
        const float p1 = Exp2(score[s][2 * row + 1]);
        sum[0] += p0;
        sum[1] += p1;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const ScaleZero v = tile_scales.value[s][row][group];
          const float boosted = v.scale * boost;
          const float w0 = p0 * boosted, w1 = p1 * boosted;
          // Exact weights, not the rounded ones: zero may be far (nearly constant rows).
          zero[group][0] = fmaf(w0, v.zero, zero[group][0]);
          zero[group][1] = fmaf(w1, v.zero, zero[group][1]);
          b[s][group][row] = TransposeMatrix(PackHalf(w0, w1));
        }
      }
    }
    const uint32_t values = stage + Traits::kCodeBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kShared) {
        const uint32_t keep = (g < 4) == (half == 0) ? ~0U : 0U;
        uint32_t masked[kGroups][2];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          masked[group][0] = b[0][group][0] & keep;
          masked[group][1] = b[0][group][1] & keep;
        }
        AddValues(p, values, half, masked);
      } else {
        AddValues(p, values, half, b[half]);
      }
    }
  }

  // Leaves field 3 alone in its step (kWholeBytes): rows 8-15 of 64 channels hold the odd bytes.
  __device__ __forceinline__ void TakeOtherFieldsOff() {
#pragma unroll
    for (int c = kDim == 64 ? 2 : 0; c < 4; ++c) {
#pragma unroll
      for (int last = kDim == 64 ? 3 : 7; last < kSteps; last += 8) {
        o[last][c] -= o[last - 3][c] + o[last - 2][c] + o[last - 1][c];
      }
    }
  }

  // The output without the factors of the subnormal codes and without its zero term.
  __device__ __forceinline__ void Finish(WarpResult<kSteps>& result) {
    if constexpr (kWholeBytes) TakeOtherFieldsOff();
    const float down = __frcp_rn(boost);  // exact
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      result.max[c] = fresh ? kNoScore : max[c];
      result.sum[c] = ColumnSum(sum[c]);
      float zeros[kGroups];
#pragma unroll
      for (int group = 0; group < kGroups; ++group) zeros[group] = ColumnSum(zero[group][c]) * down;
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        const int field = s & 3;
        const float up = down * static_cast<float>(1 << (24 - 2 * field));
        const float z = zeros[kGroups == 1 ? 0 : field];
        result.o[s][c] = o[s][c] * up - z;
        result.o[s][c + 2] = o[s][c + 2] * up - z;
      }
    }
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
