// How 2-bit codes become operands of the multiply, one field at a time. Device code.
#pragma once

#include <cstdint>

#include "oscar/cuda/decode_limits.h"

namespace oscar {

// The odd bytes of both halves of a word, each in the low byte of its half.
__device__ __forceinline__ uint32_t OddBytes(uint32_t word) { return __byte_perm(word, 0, 0x4341); }

// a b with a the codes of 16 tokens in words r (ldmatrix), one field and byte parity per step.
// kWhole: the last step, field 3 of the odd bytes, comes with the bytes' other fields: its product
// is the sum of those of all four.
template <bool kWhole, typename Body>
__device__ __forceinline__ void ForFields(const uint32_t (&r)[4], Body body) {
#pragma unroll
  for (int parity = 0; parity < 2; ++parity) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = parity == 0 ? r[i] : OddBytes(r[i]);
#pragma unroll
    for (int field = 0; field < 4; ++field) {
      const uint32_t mask = kWhole && parity == 1 && field == 3 ? ~0U : 0x00030003U << (2 * field);
      body(parity * 4 + field, w[0] & mask, w[1] & mask, w[2] & mask, w[3] & mask);
    }
  }
}

// Where the keys' field `field` stands in an operand, see kKeyFieldBits.
__device__ __forceinline__ int KeyFieldBit(int field) {
  return static_cast<int>(kKeyFieldBits >> (4 * field)) & 15;
}
// Field `field` of a word of keys in its place. `raise`: 16.
__device__ __forceinline__ uint32_t CutKeyField(uint32_t word, int field, uint32_t raise) {
  const uint32_t moved = field < 3 ? word * raise : field < 5 ? word : word >> 6;
  return moved & (0x00030003U << KeyFieldBit(field));
}

// As ForFields, for two sets of words of keys.
template <typename Body>
__device__ __forceinline__ void ForKeyFields(const uint32_t (&r)[2][4], uint32_t raise, Body body) {
#pragma unroll
  for (int field = 0; field < 8; ++field) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) w[i] = CutKeyField(r[half][i], field, raise);
      body(half, field, w[0], w[1], w[2], w[3]);
    }
  }
}

// Keys of 64 channels: words of two 8-token matrices; both parities make one step.
template <typename Body>
__device__ __forceinline__ void ForShortKeyFields(uint32_t r0, uint32_t r1, uint32_t raise,
                                                  Body body) {
#pragma unroll
  for (int field = 0; field < 4; ++field) {
    body(field, CutKeyField(r0, field, raise), CutKeyField(r1, field, raise),
         CutKeyField(r0, 4 + field, raise), CutKeyField(r1, 4 + field, raise));
  }
}

}  // namespace oscar
