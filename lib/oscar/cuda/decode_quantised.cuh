// Partial attention over 2-bit tokens. Device code.
//
// A block serves up to eight KV heads; a warp takes one head and 32 tokens of every tile. The codes
// go to the tensor cores as they lie in the cache: the bytes of 16 tokens, fetched with ldmatrix,
// masked to one 2-bit field, are half-precision subnormals code * 2^bit * 2^-24, exact, in the
// order of an A operand. Field i of byte j is channel j + i D/4, so the queries are permuted and
// scaled by 2^(10-bit) once (KeyFieldBit), and every product is code * q * 2^-14. For the output
// the same bytes, fetched transposed, are the A operand of O^T = V^T P^T; field i stays at bit 2i.
//
// With at most four query heads per KV head the eight columns of the multiply hold each head twice;
// scores of the first 16 tokens are taken from columns 0-3, of the second from 4-7. The weights of
// the second are then handed over to columns 0-3, where all outputs are; what comes out of columns
// 4-7 is left out. With more than eight a warp takes two column
// tiles, and every operand cut out of the codes serves both.
#pragma once

#include "oscar/cuda/decode_fields.cuh"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

struct ScaleZero {
  float scale, zero;
};

// From shared memory.
template <ScaleKind kKind>
__device__ __forceinline__ ScaleZero LoadScaleZero(uint32_t at) {
  if constexpr (kKind == ScaleKind::kF32) {
    const float2 pair = LoadShared2(at);
    return {pair.x, pair.y};
  } else {
    const uint32_t packed = LoadShared(at);
    if constexpr (kKind == ScaleKind::kF16) {
      // Constant rows overflow half precision; an infinity counts as the largest number.
      const float2 pair = UnpackHalf(LimitMagnitudes(packed, 0x7bff7bffU));
      return {pair.x, pair.y};
    }
    return {LowBFloat16(packed), HighBFloat16(packed)};
  }
}

// (scale, zero) of a lane's tokens of a tile: K and V, [score tile][row g or g + 8][group].
template <int kScoreTiles, int kGroups>
struct TileScales {
  ScaleZero key[kScoreTiles][2][kGroups], value[kScoreTiles][2][kGroups];

  __device__ __forceinline__ float SumOfValues() const {
    float sum = value[0][0][0].scale + value[0][1][0].scale;
#pragma unroll
    for (int i = 1; i < kScoreTiles * kGroups; ++i) {
      const auto& pair = value[i / kGroups];
      sum += pair[0][i % kGroups].scale + pair[1][i % kGroups].scale;
    }
    return sum;
  }

  // `base`: where the lane's first token's stand in shared memory; those of the values `to_values`
  // bytes behind.
  __device__ __forceinline__ void Load(const DecodeParams& p, uint32_t base, int to_values,
                                       int heads_log2) {
    if (p.scale_kind == ScaleKind::kF32) {
      LoadAs<ScaleKind::kF32>(p, base, to_values, heads_log2);
    } else if (p.scale_kind == ScaleKind::kF16) {
      LoadAs<ScaleKind::kF16>(p, base, to_values, heads_log2);
    } else {
      LoadAs<ScaleKind::kBF16>(p, base, to_values, heads_log2);
    }
  }

 private:
  template <ScaleKind kKind>
  __device__ __forceinline__ void LoadAs(const DecodeParams& p, uint32_t base, int to_values,
                                         int heads_log2) {
    constexpr int kBytes = kKind == ScaleKind::kF32 ? 8 : 4;
    const int row_bytes = kGroups == 1 ? kBytes << heads_log2 : 1 << (p.head_scale_log2 + heads_log2);
#pragma unroll
    for (int s = 0; s < kScoreTiles; ++s) {
#pragma unroll
      for (int row = 0; row < 2; ++row) {
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int index = kGroups == 1 ? 0 : group * p.groups / 4;
          const uint32_t at =
              base + static_cast<uint32_t>((2 * s + row) * 8 * row_bytes + index * kBytes);
          key[s][row][group] = LoadScaleZero<kKind>(at);
          value[s][row][group] =
              LoadScaleZero<kKind>(at + static_cast<uint32_t>(to_values));
        }
      }
    }
  }
};

// Eight queries of one KV head, or as many as there are, as B operands in half precision, and what
// turns accumulators into base-2 scores.
template <int kDim, int kGroups, bool kShared>
struct QuantisedQueries {
  static constexpr int kSteps = kDim / 16;
  uint32_t b[kSteps][2];
  float factor[2];        // of columns 2t, 2t + 1
  float sum[kGroups][2];  // of the channels of a group, in base-2 score units

  // Where a lane's numbers are. Columns without a query head take those of the first one: nobody
  // reads their results.
  __device__ __forceinline__ static const char* Row(const DecodeParams& p, int request, int head,
                                                    int first_column) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int g = lane >> 2, t = lane & 3;
    const int column = kShared ? (g & 3) : first_column + g;
    const int64_t row = (static_cast<int64_t>(request) * p.kv_heads + head) * p.group_size +
                        (column < p.group_size ? column : 0);
    return reinterpret_cast<const char*>(p.q + row * kDim + 4 * t);
  }

  // Channels of step s: field i = s % 4 of bytes 4t + parity, 4t + 2 + parity (and 16 on), see the
  // head of the file. 64 channels: both parities in one step, steps are fields.
  __device__ __forceinline__ void Load(const DecodeParams& p, const char* row) {
    uint2 raw[kDim / 16];
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) raw[i] = LoadGlobal2(row + 32 * i);
    // |q| * up < 2^9, and * 2^6 (Convert) still fits half precision. Powers of two by their bits;
    // down is 1 / up in base-2 score units.
    const uint32_t exponent = min(max(LargestExponent(raw), 35U << 23), 219U << 23);
    const float up = __uint_as_float(((254U + 8U) << 23) - exponent);
    const float down = p.logit_scale * __uint_as_float(exponent - (8U << 23));
    const int t = static_cast<int>(threadIdx.x) & 3;
    const float f = down * 0x1p14F;
    factor[0] = __shfl_sync(~0U, f, 8 * t);
    factor[1] = __shfl_sync(~0U, f, 8 * t + 4);
    float sums[kGroups];
    Convert(raw, up, sums);
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      float s = sums[i] * down;
      s += __shfl_xor_sync(~0U, s, 1);
      s += __shfl_xor_sync(~0U, s, 2);
      sum[i][0] = __shfl_sync(~0U, s, 8 * t);
      sum[i][1] = __shfl_sync(~0U, s, 8 * t + 4);
    }
  }

 private:
  // The exponent of the largest magnitude of the lanes that share a row, as that of a float.
  __device__ __forceinline__ static uint32_t LargestExponent(const uint2 (&raw)[kDim / 16]) {
    uint32_t largest = LargerMagnitudes(raw[0].x, raw[0].y);
#pragma unroll
    for (int i = 1; i < kDim / 16; ++i) {
      largest = LargerMagnitudes(LargerMagnitudes(largest, raw[i].x), raw[i].y);
    }
    largest = LargerMagnitudes(largest, __byte_perm(largest, 0, 0x1032));
    largest = LargerMagnitudes(largest, __shfl_xor_sync(~0U, largest, 1));
    largest = LargerMagnitudes(largest, __shfl_xor_sync(~0U, largest, 2));
    return largest & 0x7f800000U;
  }

  // Also adds the channels up as they are multiplied: what half precision drops counts nowhere.
  __device__ __forceinline__ void Convert(const uint2 (&raw)[kDim / 16], float up,
                                          float (&sums)[kGroups]) {
    constexpr int kPerField = kDim / 64;
#pragma unroll
    for (int field = 0; field < 4; ++field) {
      const float for_even = static_cast<float>(1 << (kKeyFieldTop - KeyFieldBit(field)));
      const float for_odd = static_cast<float>(1 << (kKeyFieldTop - KeyFieldBit(field + 4)));
      float even_sum, odd_sum;
#pragma unroll
      for (int half = 0; half < kPerField; ++half) {  // 16-byte chunk of the quarter
        // Channels 16 (field * kPerField + half) + 4 t + 0..3.
        const uint2 four = raw[field * kPerField + half];
        const uint32_t even = PackHalf(ScaleLowBFloat16(four.x, up * for_even),
                                       ScaleLowBFloat16(four.y, up * for_even));
        const uint32_t odd = PackHalf(ScaleHighBFloat16(four.x, up * for_odd),
                                      ScaleHighBFloat16(four.y, up * for_odd));
        if constexpr (kDim == 64) {
          b[field][0] = even;
          b[field][1] = odd;
        } else {
          const int step = (half >> 1) * 8 + field;
          b[step][half & 1] = even;
          b[step + 4][half & 1] = odd;
        }
        const float2 e = UnpackHalf(even);
        const float2 o = UnpackHalf(odd);
        even_sum = half == 0 ? e.x + e.y : even_sum + (e.x + e.y);
        odd_sum = half == 0 ? o.x + o.y : odd_sum + (o.x + o.y);
      }
      // With several groups each field keeps its own sum.
      const float sum_so_far = kGroups == 1 && field > 0 ? sums[0] : 0;
      sums[kGroups == 1 ? 0 : field] =
          fmaf(even_sum, 1 / for_even, fmaf(odd_sum, 1 / for_odd, sum_so_far));
    }
  }
};

}  // namespace oscar
