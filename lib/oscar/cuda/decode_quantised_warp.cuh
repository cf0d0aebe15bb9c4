// What one warp does with a tile of 2-bit tokens (see decode_quantised.cuh for the operand maps).
// Device code.
#pragma once

#include "oscar/cuda/decode_quantised.cuh"
#include "oscar/cuda/decode_softmax.cuh"

namespace oscar {

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
struct QuantisedWarp {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  static constexpr int kColTiles = Traits::kColTiles;
  static constexpr bool kShared = kCols == 4;          // columns 4-7 repeat 0-3
  static constexpr int kScoreTiles = kShared ? 1 : 2;  // of 16 tokens
  static constexpr int kSteps = kDim / 16;

  QuantisedQueries<kDim, kColTiles, kGroups> q;
  float o[kColTiles][kSteps][4];
  float max[kColTiles][2];  // running; zero until there is a score
  bool fresh = true;        // no score yet
  float sum[kColTiles][2];
  float zero[kColTiles][kGroups][2];  // sum of p s z, boosted
  float boost = 1;                    // power of two on p s, so that it fills half precision
  float scale_limit = -1;             // largest value scale that `boost` allows

  int head_in_block, part;
  uint32_t key_offset, value_offset, sixteen_rows;
  uint32_t scale_offset;  // of the lane's first token and head in the (scale, zero) of a stage
  uint32_t eight_rows;    // bytes of eight tokens' (scale, zero)

  __device__ QuantisedWarp(const DecodeParams& p, const PlanPiece& piece) {
    const int tid = static_cast<int>(threadIdx.x);
    const int warp = tid >> 5, lane = tid & 31;
    const int heads_log2 = HeadsLog2<kHeadsLog2>(p);
    head_in_block = warp & ((1 << heads_log2) - 1);
    part = warp >> heads_log2;
    const int first =
        part * kQuantisedWarpTokens + (kShared ? ((lane & 2) >> 1) * 16 : 0) + (lane >> 2);
    scale_offset =
        static_cast<uint32_t>((first << p.scale_row_log2) +
                              head_in_block * (p.scale_kind == ScaleKind::kF32 ? 8 : 4) * p.groups);
    if (SwizzlesScales<kHeadsLog2>(p))
      scale_offset ^= static_cast<uint32_t>(ScaleSwizzle<Traits>(first) << 4);
    eight_rows = 8U << p.scale_row_log2;
    const int row = lane & 7, matrix = lane >> 3;
    // Rows of the lane in the codes of a tile, and the chunk of the warp's head.
    const int chunks_log2 = heads_log2 + (kDim == 64 ? 0 : kDim == 128 ? 1 : 2);
    const int token = part * kQuantisedWarpTokens + row, head_chunk = head_in_block * (kDim / 64);
    sixteen_rows = 256U << chunks_log2;
    if constexpr (kDim == 64) {
      key_offset = CodeOffset(token + matrix * 8, head_chunk, chunks_log2);
      value_offset = key_offset;
    } else {
      key_offset = CodeOffset(token + (matrix & 1) * 8, head_chunk + (matrix >> 1), chunks_log2);
      value_offset = CodeOffset(token + (matrix >> 1) * 8, head_chunk + (matrix & 1), chunks_log2);
    }
    Pin(key_offset);
    Pin(value_offset);
    Pin(scale_offset);
    q.Load(p, piece.request, (piece.head_block << heads_log2) + head_in_block, kCols);
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        max[tile][c] = 0;
        sum[tile][c] = 0;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) zero[tile][group][c] = 0;
      }
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
        o[tile][i][0] = o[tile][i][1] = o[tile][i][2] = o[tile][i][3] = 0;
    }
  }

  // a b with a the codes of 16 tokens in words r (ldmatrix), one field and byte parity per step.
  template <typename Body>
  __device__ __forceinline__ static void ForFields(const uint32_t (&r)[4], Body body) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = parity == 0 ? r[i] : r[i] >> 8;
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        const uint32_t mask = 0x00030003U << (2 * field);
        body(parity * 4 + field, w[0] & mask, w[1] & mask, w[2] & mask, w[3] & mask);
      }
    }
  }
  template <typename Body>
  __device__ __forceinline__ static void ForFieldsOfTwo(const uint32_t (&r)[2][4], Body body) {
#pragma unroll
    for (int parity = 0; parity < 2; ++parity) {
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        const uint32_t mask = 0x00030003U << (2 * field);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t w[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) w[i] = (parity == 0 ? r[half][i] : r[half][i] >> 8) & mask;
          body(half, parity * 4 + field, w[0], w[1], w[2], w[3]);
        }
      }
    }
  }
  // 64 channels: words of two 8-token matrices; both parities make one step.
  template <typename Body>
  __device__ __forceinline__ static void ForShortFields(uint32_t r0, uint32_t r1, Body body) {
    const uint32_t s0 = r0 >> 8, s1 = r1 >> 8;
#pragma unroll
    for (int field = 0; field < 4; ++field) {
      const uint32_t mask = 0x00030003U << (2 * field);
      body(field, r0 & mask, r1 & mask, s0 & mask, s1 & mask);
    }
  }

  // acc[score tile][column tile][group] = codes . q of the warp's 32 tokens.
  __device__ __forceinline__ void Scores(uint32_t stage,
                                         float (&acc)[kScoreTiles][kColTiles][kGroups][4]) const {
    float both[2][kColTiles][kGroups][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          float(&a)[4] = both[half][tile][group];
          a[0] = a[1] = a[2] = a[3] = 0;
        }
      }
    }
    const auto multiply = [&](int half, int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        MultiplyHalf(both[half][tile][kGroups == 1 ? 0 : field], a0, a1, a2, a3, q.b[tile][step][0],
                     q.b[tile][step][1]);
      }
    };
    if constexpr (kDim == 64) {
      uint32_t r[4];
      LoadMatrix4(r, stage + key_offset);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ForShortFields(r[2 * half], r[2 * half + 1],
                       [&](int field, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                         multiply(half, field, field, a0, a1, a2, a3);
                       });
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[2][4];
        LoadMatrix4(r[0], (stage + key_offset) ^ (chunk * 32));
        LoadMatrix4(r[1], (stage + key_offset + sixteen_rows) ^ (chunk * 32));
        // Both halves in turn: two chains of multiplies that do not wait for one another.
        ForFieldsOfTwo(r,
                       [&](int half, int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                         multiply(half, chunk * 8 + step, step & 3, a0, a1, a2, a3);
                       });
      }
    }
    const bool second = (threadIdx.x & 2) != 0;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (kShared) {
            acc[0][tile][group][i] = second ? both[1][tile][group][i] : both[0][tile][group][i];
          } else {
            acc[0][tile][group][i] = both[0][tile][group][i];
            acc[1][tile][group][i] = both[1][tile][group][i];
          }
        }
      }
    }
  }

  // o += V^T p of 16 tokens; b0, b1: p as a B operand.
  __device__ __forceinline__ void AddValues(uint32_t stage, int half,
                                            const uint32_t (&b)[kColTiles][kGroups][2]) {
    const auto multiply = [&](int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
        const uint32_t(&f)[2] = b[tile][kGroups == 1 ? 0 : field];
        MultiplyHalf(o[tile][step], a0, a1, a2, a3, f[0], f[1]);
      }
    };
    if constexpr (kDim == 64) {
      // Rows 0-7 of a step: even bytes, rows 8-15: odd bytes.
      uint32_t r[4];
      LoadMatrix4Transposed(r, stage + value_offset);
      const uint32_t r0 = half == 0 ? r[0] : r[2], r1 = half == 0 ? r[1] : r[3];
      const uint32_t s0 = r0 >> 8, s1 = r1 >> 8;
#pragma unroll
      for (int field = 0; field < 4; ++field) {
        const uint32_t mask = 0x00030003U << (2 * field);
        multiply(field, field, r0 & mask, s0 & mask, r1 & mask, s1 & mask);
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[4];
        LoadMatrix4Transposed(r, (stage + value_offset + half * sixteen_rows) ^ (chunk * 32));
        ForFields(r, [&](int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
          multiply(chunk * 8 + step, step & 3, a0, a1, a2, a3);
        });
      }
    }
  }

  // Raises maxima and the boost so that no score is positive and every scale fits.
  __device__ void Rescale(float (&score)[kScoreTiles][kColTiles][4], float largest_scale) {
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
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float rise = fresh ? -INFINITY : 0.0F;
#pragma unroll
        for (int s = 0; s < kScoreTiles; ++s) {
          rise = fmaxf(rise, fmaxf(score[s][tile][c], score[s][tile][c + 2]));
        }
        rise = ColumnMax(rise, kShared);
        if (rise == -INFINITY) continue;  // nothing but tokens that do not exist, in every column
        some = true;
        // The new maximum is rounded; scores follow the rounded one.
        const float top = max[tile][c] + rise;
        const float step = top - max[tile][c];
        const float factor = fresh ? 1.0F : Exp2(-step);
        max[tile][c] = top;
#pragma unroll
        for (int s = 0; s < kScoreTiles; ++s) {
          score[s][tile][c] -= step;
          score[s][tile][c + 2] -= step;
        }
        sum[tile][c] *= factor;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) zero[tile][group][c] *= factor * boost_factor;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          o[tile][i][c] *= factor * boost_factor;
          o[tile][i][c + 2] *= factor * boost_factor;
        }
      }
    }
    fresh = fresh && !some;
  }

  // (scale, zero) of the lane's tokens: K and V, [score tile][row g or g + 8][group].
  struct TileScales {
    ScaleZero key[kScoreTiles][2][kGroups], value[kScoreTiles][2][kGroups];
  };
  __device__ __forceinline__ void LoadScales(const DecodeParams& p, const char* scales,
                                             TileScales& out) const {
    const char* const base = scales + scale_offset;
    if (p.scale_kind == ScaleKind::kF32) {
      LoadScalesAs<8>(p, base, out);
    } else {
      LoadScalesAs<4>(p, base, out);
    }
  }
  template <int kBytes>
  __device__ __forceinline__ void LoadScalesAs(const DecodeParams& p, const char* base,
                                               TileScales& out) const {
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int index = kGroups == 1 ? 0 : group * p.groups / 4;
          const char* const at = base + (2 * s + row) * eight_rows + index * kBytes;
          out.key[s][row][group] = LoadScaleZero<kBytes>(at, p.scale_kind);
          out.value[s][row][group] = LoadScaleZero<kBytes>(at + Traits::kScaleBytes, p.scale_kind);
        }
      }
    }
  }

  // One tile: `left` tokens of it from the warp's first on exist (any number; at least 32: all).
  __device__ __forceinline__ void Tile(const DecodeParams& p, uint32_t stage, const char* scales,
                                       int left) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
    TileScales tile_scales;
    LoadScales(p, scales, tile_scales);
    float acc[kScoreTiles][kColTiles][kGroups][4];
    Scores(stage, acc);

    // Scores minus the running maximum.
    float score[kScoreTiles][kColTiles][4];
    float largest_scale = 0;
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
        for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            float x = -max[tile][c];
#pragma unroll
            for (int group = kGroups - 1; group >= 0; --group) {
              const float dot = fmaf(acc[s][tile][group][2 * row + c], q.factor[tile][c],
                                     -key[group].zero * q.sum[tile][group][c]);
              x = fmaf(key[group].scale, dot, x);
            }
            score[s][tile][2 * row + c] = x;
          }
        }
      }
    }
    if (left < kQuantisedWarpTokens) {
#pragma unroll
      for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = (kShared ? (t >> 1) * 16 : s * 16) + g + 8 * (i >> 1);
#pragma unroll
          for (int tile = 0; tile < kColTiles; ++tile) {
            score[s][tile][i] = token < left ? score[s][tile][i] : -INFINITY;
          }
        }
      }
    }
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
        for (int i = 0; i < 4; ++i) high |= score[s][tile][i] > kLazyBits;
      }
    }
    high |= largest_scale > scale_limit;
    if (__any_sync(~0U, high)) Rescale(score, largest_scale);

    uint32_t b[kScoreTiles][kColTiles][kGroups][2];
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          const float p0 = Exp2(score[s][tile][2 * row]);
          const float p1 = Exp2(score[s][tile][2 * row + 1]);
          sum[tile][0] += p0;
          sum[tile][1] += p1;
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            const ScaleZero v = tile_scales.value[s][row][group];
            const float boosted = v.scale * boost;
            const float w0 = p0 * boosted, w1 = p1 * boosted;
            // Exact weights, not the rounded ones: zero may be far (nearly constant rows).
            zero[tile][group][0] = fmaf(w0, v.zero, zero[tile][group][0]);
            zero[tile][group][1] = fmaf(w1, v.zero, zero[tile][group][1]);
            b[s][tile][group][row] = TransposeMatrix(PackHalf(w0, w1));
          }
        }
      }
    }
    const uint32_t values = stage + Traits::kCodeBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if constexpr (kShared) {
        const uint32_t keep = (g < 4) == (half == 0) ? ~0U : 0U;
        uint32_t masked[kColTiles][kGroups][2];
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          masked[0][group][0] = b[0][0][group][0] & keep;
          masked[0][group][1] = b[0][0][group][1] & keep;
        }
        AddValues(values, half, masked);
      } else {
        AddValues(values, half, b[half]);
      }
    }
  }

  // Leaves the warp's results for MergeWarps: o without the factors of the subnormal codes and
  // without its zero term.
  __device__ void Finish(char* shared) const {
    const MergeArea<Traits, kColTiles> area(shared);
    const int lane = static_cast<int>(threadIdx.x) & 31, warp = static_cast<int>(threadIdx.x) >> 5;
    const int g = lane >> 2, t = lane & 3;
    const float down = 1.0F / boost;
#pragma unroll
    for (int tile = 0; tile < kColTiles; ++tile) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = tile * 8 + 2 * t + c;
        const float column_sum = ColumnSum(sum[tile][c]);
        if (g == 0) {
          area.max[warp * 8 * kColTiles + column] = fresh ? kNoScore : max[tile][c];
          area.sum[warp * 8 * kColTiles + column] = column_sum;
        }
        float* const out = area.Column(warp, column);
        float zeros[kGroups];
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
          zeros[group] = ColumnSum(zero[tile][group][c]);
#pragma unroll
        for (int field = 0; field < 4; ++field) {
          const float up = down * static_cast<float>(1 << (24 - 2 * field));
          const float z = zeros[kGroups == 1 ? 0 : field] * down;
          const auto store = [&](int channel, float x, float y) {
            *reinterpret_cast<float2*>(out + channel) = make_float2(x * up - z, y * up - z);
          };
          if constexpr (kDim == 64) {
            store(16 * field + 2 * g, o[tile][field][c], o[tile][field][c + 2]);
          } else {
#pragma unroll
            for (int chunk = 0; chunk < kDim / 128; ++chunk) {
              const float(&even)[4] = o[tile][chunk * 8 + field];
              const float(&odd)[4] = o[tile][chunk * 8 + field + 4];
              const int channel = kDim / 4 * field + 32 * chunk + 2 * g;
              store(channel, even[c], odd[c]);
              store(channel + 16, even[c + 2], odd[c + 2]);
            }
          }
        }
      }
    }
  }
};

}  // namespace oscar
