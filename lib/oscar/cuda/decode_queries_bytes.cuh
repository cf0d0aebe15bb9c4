// Up to four queries of a KV head as digits, for the multiply of bytes with 2-bit keys. Device
// code.
#pragma once

#include "oscar/cuda/decode_fields.cuh"
#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// 256 (256 high + middle) + low, of sums of digits.
__device__ __forceinline__ float JoinDigits(int high, int middle, int low) {
  return fmaf(static_cast<float>(256 * high + middle), 256.0F, static_cast<float>(low));
}

// A query is an integer of three digits with signs to the base 256, times a power of two: exact,
// but for channels that stand some 2^12 below the largest (kFixedBits). Odd fields of codes come
// four times as large as even ones (CutByteField), so the queries of their channels are divided by
// four. Columns 2t and 2t + 1 of the first operand hold the upper two digits of query t, column 2t
// of the second one the low digit; its other columns are left out.
template <int kDim, int kGroups>
struct ByteQueries {
  static constexpr int kCount = 1;  // queries of a lane (g, t): t
  static constexpr int kSteps = kDim / 32;
  using Dots = float[kGroups][kCount][4];
  uint32_t b[2][kSteps][2];
  float factor[kCount];        // from products to base-2 scores
  float sum[kGroups][kCount];  // of the channels of a group, in base-2 score units

  // The query head, from the first one of the columns on, that a lane loads.
  __device__ __forceinline__ static int Column() {
    return (static_cast<int>(threadIdx.x) & 31) >> 3;
  }
  // The first channel of what it loads.
  __device__ __forceinline__ static int Channel() {
    const int lane = static_cast<int>(threadIdx.x);
    return 4 * (lane & 3) + ((lane & 4) != 0 ? 16 * Sixteen(0, 1) : 0);
  }

  // `row`: of the lane's query, from Channel() on. Of the two lanes that hold digits of one query,
  // each converts the channels of one of the two words of a step, and gives the other its digits.
  __device__ __forceinline__ void Load(const DecodeParams& p, const char* row) {
    uint2 raw[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) raw[step] = LoadGlobal2(row + 32 * Sixteen(step, 0));
    const float down =
        __shfl_sync(~0U, Convert(raw) * p.logit_scale, 8 * (static_cast<int>(threadIdx.x) & 3));
    factor[0] = down * 0x1p-4F;
    AddChannels(down);
  }

  // Codes times queries of 32 tokens, whose keys are at `keys` (LoadMatrix4) and `sixteen` bytes
  // behind.
  template <bool kBorders>
  __device__ __forceinline__ void Multiply(uint32_t keys, uint32_t sixteen, uint32_t raise,
                                           int number, Dots& dots) const {
    int sums[2][kGroups][2][4];
#pragma unroll
    for (int i = 0; i < kGroups * 16; ++i)
      sums[i / 8 / kGroups][i / 8 % kGroups][i / 4 % 2][i % 4] = 0;
    if constexpr (kDim == 64) {
      MultiplyShort(keys, raise, sums);
    } else {
#pragma unroll
      for (int chunk = 0; chunk < kDim / 128; ++chunk) {
        uint32_t r[2][4];
        LoadKeys(r, keys, sixteen, chunk);
        ForByteFields<kBorders>(
            r, raise, number,
            [&](int half, int field, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                const uint32_t(&x)[2] = b[i][4 * chunk + field];
                MultiplyBytes(sums[half][field % kGroups][i], a0, a1, a2, a3, x[0], x[1]);
              }
            });
      }
    }
#pragma unroll
    for (int i = 0; i < kGroups * 4; ++i) {
      const int group = i / 4, half = i / 2 % 2, row = i % 2;
      const int(&s)[2][4] = sums[half][group];
      dots[group][0][2 * half + row] = JoinDigits(s[0][2 * row], s[0][2 * row + 1], s[1][2 * row]);
    }
  }

 private:
  // Fields 0 and 2, then 1 and 3 of keys of 16 bytes go into one multiply; those of several groups
  // alone.
  __device__ __forceinline__ void MultiplyShort(uint32_t keys, uint32_t raise,
                                                int (&sums)[2][kGroups][2][4]) const {
    uint32_t r[4];
    LoadMatrix4(r, keys);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int half = i / 4, step = i / 2 % 2, operand = i % 2;
      const uint32_t r0 = r[2 * half], r1 = r[2 * half + 1];
      const uint32_t a0 = CutByteField(r0, r0 * raise, step),
                     a1 = CutByteField(r1, r1 * raise, step);
      const uint32_t a2 = CutByteField(r0, 0, step + 2), a3 = CutByteField(r1, 0, step + 2);
      const uint32_t(&x)[2] = b[operand][step];
      if constexpr (kGroups == 1) {
        MultiplyBytes(sums[half][0][operand], a0, a1, a2, a3, x[0], x[1]);
      } else {
        MultiplyShortBytes(sums[half][step][operand], a0, a1, x[0]);
        MultiplyShortBytes(sums[half][step + 2][operand], a2, a3, x[1]);
      }
    }
  }

  // Of the sixteens of channels of a row, the one that word `half` of a step takes.
  __device__ __forceinline__ static constexpr int Sixteen(int step, int half) {
    return kDim == 64 ? step + 2 * half : (step & 3) * (kDim / 64) + (step >> 2) * 2 + half;
  }
  __device__ __forceinline__ static constexpr bool IsOddField(int step) { return step % 2 != 0; }

  // One digit of four numbers.
  __device__ __forceinline__ static uint32_t Digits(const uint32_t (&x)[4], uint32_t pair) {
    return __byte_perm(__byte_perm(x[0], x[1], pair), __byte_perm(x[2], x[3], pair), 0x5410);
  }

  // The digits of a row, of which the lane has one word of every step; what an integer is worth.
  __device__ __forceinline__ float Convert(const uint2 (&raw)[kSteps]) {
    const bool second = (threadIdx.x & 4) != 0;
    // As a float; NaN if there is one.
    const uint32_t pair = LargestPair(raw);
    const uint32_t largest =
        LargestOfRow(LargerMagnitudes(pair, __shfl_xor_sync(~0U, pair, 4))) & 0x7fff0000U;
    // The upper digit must not reach 64, so that what is just below a power of two counts as that.
    const uint32_t exponent = max((largest + 0x00020000U) & 0x7f800000U, 35U << 23);
    const float up = __uint_as_float(((254U + kFixedBits) << 23) - exponent);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint2 four = raw[step];
      const float power = IsOddField(step) ? up * 0.25F : up;
      // The low bits of these sums are the integer plus 2^15 + 2^7.
      constexpr float kRound = 0x1.8p23F + 0x8080;
      const uint32_t x[4] = {__float_as_uint(ScaleLowBFloat16(four.x, power) + kRound),
                             __float_as_uint(ScaleHighBFloat16(four.x, power) + kRound),
                             __float_as_uint(ScaleLowBFloat16(four.y, power) + kRound),
                             __float_as_uint(ScaleHighBFloat16(four.y, power) + kRound)};
      // The lower digits come plus 128, the high one plus 64, which leaves it seven bits.
      const uint32_t low = Digits(x, 0x40) ^ 0x80808080U, middle = Digits(x, 0x51) ^ 0x80808080U;
      uint32_t high = Digits(x, 0x62) ^ 0x40404040U;
      high |= (high & 0x40404040U) << 1;
      // Even columns hold high digits, odd ones the middle.
      const uint32_t other = __shfl_xor_sync(~0U, second ? high : middle, 4);
      b[0][step][0] = second ? other : high;
      b[0][step][1] = second ? middle : other;
      // Odd columns are left out.
      b[1][step][0] = low;
      b[1][step][1] = __shfl_xor_sync(~0U, low, 4);
    }
    // No number if a channel is none, or infinite.
    return (largest & 0x7f800000U) == 0x7f800000U ? __uint_as_float(0x7fffffffU)
                                                  : __uint_as_float(exponent - (kFixedBits << 23));
  }

  // Sums of the integers, by the multiply: what they drop counts nowhere. In four parts, those of
  // four groups or of one, so that hardly a multiply waits for the one before.
  __device__ __forceinline__ void AddChannels(float down) {
    int sums[4][2][4];
#pragma unroll
    for (int i = 0; i < 32; ++i) sums[i / 8][i / 4 % 2][i % 4] = 0;
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const int step = i / 2, operand = i % 2;
      const uint32_t one = IsOddField(step) ? 0x04040404U : 0x01010101U;
      const uint32_t(&x)[2] = b[operand][step];
      if constexpr (kGroups > 1 && kDim == 64) {
        MultiplyShortBytes(sums[step][operand], one, one, x[0]);
        MultiplyShortBytes(sums[step + 2][operand], one, one, x[1]);
      } else {
        MultiplyBytes(sums[step % 4][operand], one, one, one, one, x[0], x[1]);
      }
    }
    const auto total = [&](int group, int operand, int at) {
      if constexpr (kGroups > 1) return sums[group][operand][at];
      return (sums[0][operand][at] + sums[1][operand][at]) +
             (sums[2][operand][at] + sums[3][operand][at]);
    };
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      sum[group][0] = JoinDigits(total(group, 0, 0), total(group, 0, 1), total(group, 1, 0)) * down;
    }
  }
};

}  // namespace oscar
