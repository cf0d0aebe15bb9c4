// The few machine instructions that the kernels are made of. Device code only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "oscar/cuda/shared_memory.cuh"

namespace oscar {

// Keeps a value in a register: the compiler otherwise works it out anew in every turn of a loop.
__device__ __forceinline__ void Pin(uint32_t& x) { asm volatile("" : "+r"(x)); }
__device__ __forceinline__ void Pin(const char*& x) { asm volatile("" : "+l"(x)); }

// The same for what ptxas, too, would rather work out anew in a loop: it does not see through a
// shuffle. By all lanes.
__device__ __forceinline__ void PinLane(uint32_t& x) {
  x = __shfl_sync(~0U, x, static_cast<int>(threadIdx.x) & 31);
}

// base + index * stride, in one instruction.
__device__ __forceinline__ const char* AddressOf(const char* base, uint32_t index,
                                                 uint32_t stride) {
  const char* at;
  asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(at) : "r"(index), "r"(stride), "l"(base));
  return at;
}

__device__ __forceinline__ uint2 LoadGlobal2(const char* at) {
  uint2 x;
  asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "l"(at));
  return x;
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l & 7 of matrix l >> 3.
__device__ __forceinline__ void LoadMatrix4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ uint32_t TransposeMatrix(uint32_t r) {
  uint32_t out;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(r));
  return out;
}

// c += a b with a [16, 16] and b [16, 8]. Lane (g, t) = (lane / 4, lane % 4) holds
//   a0 (g, 2t..), a1 (g + 8, 2t..), a2 (g, 2t + 8..), a3 (g + 8, 2t + 8..),
//   b0 (2t.., g), b1 (2t + 8.., g), c0 c1 (g, 2t..), c2 c3 (g + 8, 2t..).
__device__ __forceinline__ void MultiplyHalf(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                             uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// c += a b with a [16, 32] unsigned and b [32, 8] signed bytes, four to a word: a0 (g, 4t..),
// a1 (g + 8, 4t..), a2 (g, 4t + 16..), a3 (g + 8, 4t + 16..), b0 (4t.., g), b1 (4t + 16.., g); c as
// above.
__device__ __forceinline__ void MultiplyBytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                              uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// The same with the first 16 of the 32, a0, a1 and b0, alone.
__device__ __forceinline__ void MultiplyShortBytes(int (&c)[4], uint32_t a0, uint32_t a1,
                                                   uint32_t b0) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}

__device__ __forceinline__ void MultiplyBFloat16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                 uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Gives registers of the warp group up, or gets some that another one gave up.
template <int kRegisters>
__device__ __forceinline__ void ShrinkRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void GrowRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x within one unit in the last place; x is no subnormal number.
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, where x is a power of two between 2^-126 and 2^126.
__device__ __forceinline__ float InversePower(float x) {
  return __uint_as_float((254U << 23) - __float_as_uint(x));
}

// Programmatic dependent launch: wait for the kernels before this one and their writes; let the
// next kernel start its own waiting.
__device__ __forceinline__ void WaitForPredecessors() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void ReleaseSuccessors() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ __forceinline__ uint32_t PackHalf(float low, float high) {
  const __half2 packed = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&packed);
}

__device__ __forceinline__ float2 UnpackHalf(uint32_t packed) {
  return __half22float2(*reinterpret_cast<const __half2*>(&packed));
}

// Both halves with magnitudes of at most those of `limit`, whose signs are plus.
__device__ __forceinline__ uint32_t LimitMagnitudes(uint32_t packed, uint32_t limit) {
  uint32_t limited;
  asm("min.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(limited) : "r"(packed), "r"(limit));
  return limited;
}

__device__ __forceinline__ uint32_t PackBFloat16(float low, float high) {
  const __nv_bfloat162 packed = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&packed);
}

__device__ __forceinline__ float LowBFloat16(uint32_t packed) {
  return __uint_as_float(packed << 16);
}
__device__ __forceinline__ float HighBFloat16(uint32_t packed) {
  return __uint_as_float(packed & 0xffff0000U);
}

// Of each half the number with the larger magnitude, with some sign; NaN where there is one.
__device__ __forceinline__ uint32_t LargerMagnitudes(uint32_t a, uint32_t b) {
  uint32_t larger;
  asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

// The larger magnitudes of numbers two by two.
template <int kCount>
__device__ __forceinline__ uint32_t LargestPair(const uint2 (&numbers)[kCount]) {
  uint32_t largest = LargerMagnitudes(numbers[0].x, numbers[0].y);
#pragma unroll
  for (int i = 1; i < kCount; ++i) {
    largest = LargerMagnitudes(LargerMagnitudes(largest, numbers[i].x), numbers[i].y);
  }
  return largest;
}
// The larger magnitude of a pair, and of those of the four lanes that share a row.
__device__ __forceinline__ uint32_t LargestOfRow(uint32_t pair) {
  uint32_t largest = LargerMagnitudes(pair, __byte_perm(pair, 0, 0x1032));
  largest = LargerMagnitudes(largest, __shfl_xor_sync(~0U, largest, 1));
  return LargerMagnitudes(largest, __shfl_xor_sync(~0U, largest, 2));
}

// A bf16 number of a pair times a power of two, in one instruction: a float whose low half is zero
// is a pair of bf16 numbers, zero and itself. Exact where the product is normal; -0 becomes 0.
__device__ __forceinline__ float ScaleBFloat16(__nv_bfloat162 twice, float power) {
  const auto zero_and_power = *reinterpret_cast<const __nv_bfloat162*>(&power);
  const __nv_bfloat162 product = __hfma2(twice, zero_and_power, __float2bfloat162_rn(0));
  return __uint_as_float(*reinterpret_cast<const uint32_t*>(&product));
}
__device__ __forceinline__ float ScaleLowBFloat16(uint32_t packed, float power) {
  return ScaleBFloat16(__low2bfloat162(*reinterpret_cast<const __nv_bfloat162*>(&packed)), power);
}
__device__ __forceinline__ float ScaleHighBFloat16(uint32_t packed, float power) {
  return ScaleBFloat16(__high2bfloat162(*reinterpret_cast<const __nv_bfloat162*>(&packed)), power);
}

}  // namespace oscar
