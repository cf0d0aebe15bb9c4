// How 2-bit codes become operands of the multiply, one field at a time. Device code.
#pragma once

#include <cstdint>

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// A border that ptxas moves no instruction across. Where registers are short it otherwise cuts
// every operand out right in front of its multiply and into the registers of the one before, so
// that each waits for the other. One exit that no thread takes, of which ptxas leaves the first of
// a tile.
// `number`: never -1, which the compiler cannot know.
__device__ __forceinline__ void EndOfBlock(int number) {
  asm volatile("{ .reg .pred never; setp.eq.s32 never, %0, -1; @never exit; }" ::"r"(number));
}

// The odd bytes of both halves of a word, each in the low byte of its half.
__device__ __forceinline__ uint32_t OddBytes(uint32_t word) { return __byte_perm(word, 0, 0x4341); }

// a b with a the codes of 16 tokens in words r (ldmatrix), one field and byte parity per step.
// kWhole: the last step, field 3 of the odd bytes, comes with the bytes' other fields: its product
// is the sum of those of all four. Operands are cut out one multiply ahead; kBorders: and kept
// there, see EndOfBlock for `number`.
template <bool kWhole, bool kBorders, typename Body>
__device__ __forceinline__ void ForFields(const uint32_t (&r)[4], int number, Body body) {
  uint32_t w[4], odd[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) w[i] = r[i] & 0x00030003U;
  if constexpr (kBorders) EndOfBlock(number);
#pragma unroll
  for (int step = 0; step < 8; ++step) {
    const int next = step + 1, field = next & 3;
    uint32_t ahead[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (next == 4) odd[i] = OddBytes(r[i]);
      const uint32_t mask = kWhole && next == 7 ? ~0U : 0x00030003U << (2 * field);
      if (next < 8) ahead[i] = (next < 4 ? r[i] : odd[i]) & mask;
    }
    body(step, w[0], w[1], w[2], w[3]);
#pragma unroll
    for (int i = 0; i < 4 && next < 8; ++i) w[i] = ahead[i];
  }
}

// Words of the keys of 16 and 16 tokens, `sixteen` bytes apart: 32 bytes of each, the chunk-th.
__device__ __forceinline__ void LoadKeys(uint32_t (&r)[2][4], uint32_t keys, uint32_t sixteen,
                                         int chunk) {
  LoadMatrix4(r[0], keys ^ (chunk * 32));
  LoadMatrix4(r[1], (keys + sixteen) ^ (chunk * 32));
}

// As ForFields, for two sets of words of keys: body(half, field, a0, ..., a3) with the words
// cut(i, field) of i = 4 half + 0..3. A border in front of every kStride fields.
template <int kFields, int kStride, bool kBorders, typename Cut, typename Body>
__device__ __forceinline__ void ForKeyFields(int number, Cut cut, Body body) {
  uint32_t w[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) w[i] = cut(i, 0);
#pragma unroll
  for (int field = 0; field < kFields; ++field) {
    if (kBorders && field % kStride == 0) EndOfBlock(number);
    uint32_t now[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) now[i] = w[i];
#pragma unroll
    for (int i = 0; i < 8 && field + 1 < kFields; ++i) w[i] = cut(i, field + 1);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t* const a = now + 4 * half;
      body(half, field, a[0], a[1], a[2], a[3]);
    }
  }
}

// Where the keys' field `field` stands in an operand, see kKeyFieldBits.
__device__ __forceinline__ int KeyFieldBit(int field) {
  return static_cast<int>(kKeyFieldBits >> (4 * field)) & 15;
}
// Field `field` of a word of keys in its place. `raise`: 16.
__device__ __forceinline__ uint32_t CutHalfField(uint32_t word, int field, uint32_t raise) {
  const uint32_t moved = field < 3 ? word * raise : field < 5 ? word : word >> 6;
  return moved & (0x00030003U << KeyFieldBit(field));
}

// The fields of two sets of words of keys in half precision.
template <bool kBorders, typename Body>
__device__ __forceinline__ void ForHalfFields(const uint32_t (&r)[2][4], uint32_t raise, int number,
                                              Body body) {
  ForKeyFields<8, 2, kBorders>(
      number, [&](int i, int field) { return CutHalfField(r[i / 4][i % 4], field, raise); }, body);
}

// Keys of 64 channels: words of two 8-token matrices; both parities make one step.
template <typename Body>
__device__ __forceinline__ void ForShortHalfFields(uint32_t r0, uint32_t r1, uint32_t raise,
                                                   Body body) {
#pragma unroll
  for (int field = 0; field < 4; ++field) {
    body(field, CutHalfField(r0, field, raise), CutHalfField(r1, field, raise),
         CutHalfField(r0, 4 + field, raise), CutHalfField(r1, 4 + field, raise));
  }
}

// Field `field` of four bytes of keys, times 16 (fields 0 and 2) or 64: in unsigned bytes.
// `raised`: the bytes times 16.
__device__ __forceinline__ uint32_t CutByteField(uint32_t bytes, uint32_t raised, int field) {
  return (field < 2 ? raised : bytes) & (field % 2 == 0 ? 0x30303030U : 0xc0c0c0c0U);
}

// Those of 16 and 16 tokens with 32 bytes of keys. `raise`: 16.
template <bool kBorders, typename Body>
__device__ __forceinline__ void ForByteFields(const uint32_t (&r)[2][4], uint32_t raise, int number,
                                              Body body) {
  uint32_t raised[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) raised[i] = r[i / 4][i % 4] * raise;
  ForKeyFields<4, 1, kBorders>(
      number, [&](int i, int field) { return CutByteField(r[i / 4][i % 4], raised[i], field); },
      body);
}

}  // namespace oscar
