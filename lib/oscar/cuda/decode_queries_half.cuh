// Up to eight queries of a KV head in half precision, for the multiply with 2-bit keys. Device
// code.
#pragma once

#include "oscar/cuda/decode_fields.cuh"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Keys are subnormal numbers of half precision, code * 2^bit * 2^-24, two to a word of the cache.
// Field i of byte j is channel j + i D/4, so the queries are permuted and scaled by 2^(10-bit) once
// (KeyFieldBit), and every product is code * q * 2^-14. Columns 2t and 2t + 1 are queries t and
// t + 4. Takes fewer registers and multiplies for eight queries than ByteQueries would.
template <int kDim, int kGroups>
struct HalfQueries {
  static constexpr int kCount = 2;  // queries of a lane (g, t): t and t + 4
  static constexpr int kSteps = kDim / 16;
  using Dots = float[kGroups][kCount][4];
  uint32_t b[kSteps][2];
  float factor[kCount];        // from products to base-2 scores
  float sum[kGroups][kCount];  // of the channels of a group, in base-2 score units

  // The query head, from the first one of the columns on, that a lane loads.
  __device__ __forceinline__ static int Column() {
    const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
    return (g >> 1) + 4 * (g & 1);
  }
  // The first channel of what it loads.
  __device__ __forceinline__ static int Channel() {
    return 4 * (static_cast<int>(threadIdx.x) & 3);
  }

  // `row`: of the lane's query, from Channel() on. Channels of step s: field i = s % 4 of bytes 4t
  // + parity, 4t + 2 + parity (and 16 on), 64 channels: both parities in one step, steps are
  // fields.
  __device__ __forceinline__ void Load(const DecodeParams& p, const char* row) {
    uint2 raw[kDim / 16];
#pragma unroll
    for (int i = 0; i < kDim / 16; ++i) raw[i] = LoadGlobal2(row + 32 * i);
    // |q| * up < 2^9, and * 2^6 (Convert) still fits half precision. Powers of two by their bits;
    // down is 1 / up in base-2 score units.
    const uint32_t exponent =
        min(max(LargestOfRow(LargestPair(raw)) & 0x7f800000U, 35U << 23), 219U << 23);
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

  // Codes times queries of 32 tokens, whose keys are at `keys` (LoadMatrix4) and `sixteen` bytes
  // behind.
  // operand(step, b) gives the queries of a step.
  template <bool kBorders, int kTiles, typename Operand>
  __device__ __forceinline__ static void Multiply(uint32_t keys, uint32_t sixteen, uint32_t raise,
                                                  int number, Operand operand,
                                                  Dots (&dots)[kTiles]) {
    float products[kTiles][2][kGroups][4];
#pragma unroll
    for (int i = 0; i < kTiles * 2 * kGroups * 4; ++i) {
      products[i / 8 / kGroups][i / 4 / kGroups % 2][i / 4 % kGroups][i % 4] = 0;
    }
    uint32_t b[kSteps][kTiles][2];
    const auto multiply = [&](int half, int step, int field, uint32_t a0, uint32_t a1, uint32_t a2,
                              uint32_t a3) {
      // Two steps ahead, in the order in which both halves of the tokens take them.
      if (half == 0 && step == 0) operand(0, b[0]);
      if (half == 0 && step == 0) operand(1, b[1]);
      if (half == 0 && step + 2 < kSteps) operand(step + 2, b[step + 2]);
#pragma unroll
      for (int c = 0; c < kTiles; ++c) {
        MultiplyHalf(products[c][half][field % kGroups], a0, a1, a2, a3, b[step][c][0],
                     b[step][c][1]);
      }
    };
    if constexpr (kDim == 64) {
      uint32_t r[4];
      LoadMatrix4(r, keys);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ForShortHalfFields(r[2 * half], r[2 * half + 1], raise,
                           [&](int field, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
                             multiply(half, field, field, a0, a1, a2, a3);
                           });
      }
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[2][4];
        LoadKeys(r, keys, sixteen, chunk);
        ForHalfFields<kBorders>(
            r, raise, number,
            [&](int half, int step, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
              multiply(half, chunk * 8 + step, step & 3, a0, a1, a2, a3);
            });
      }
    }
#pragma unroll
    for (int i = 0; i < kTiles * kGroups * 8; ++i) {
      const int tile = i / 8 / kGroups, group = i / 8 % kGroups, half = i / 4 % 2, at = i % 4;
      dots[tile][group][at % 2][2 * half + at / 2] = products[tile][half][group][at];
    }
  }

 private:
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
