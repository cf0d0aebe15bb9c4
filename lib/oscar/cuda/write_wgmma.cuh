// Warpgroup multiplies of Hopper for the rotation of rows. Device code, sm_90a only.
//
// Four warps multiply 64 rows, 16 each, by a tile of the rotation in shared memory. The rows come
// from registers, in the fragment layout of mma.m16n8k16 (see mma.cuh); so do the sums.
#pragma once

#include <cstdint>

namespace oscar {

// The rotation R [channels in, channels out] lies in shared memory in panels of 64 output channels:
// panel p holds row k as 128 bytes, whose 16-byte chunk c is stored at chunk c ^ (k & 7). That is
// the 128-byte swizzle of a matrix whose output channels are contiguous; the shared memory must
// begin at a multiple of 1024 bytes.
inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 2 * kPanelColumns;

// The halves of the rotation's descriptor. The lower one counts the address in 16 bytes: adding 128
// moves on by 16 input channels, a panel's size / 16 by 64 output channels. Eight rows are 1024
// bytes; panels are `panel_bytes` apart.
__device__ __forceinline__ uint32_t RotationLowerHalf(uint32_t address, uint32_t panel_bytes) {
  uint32_t half = (address >> 4) | ((panel_bytes >> 4) << 16);
  asm("" : "+r"(half));  // or the compiler works it out from the address for every multiply
  return half;
}
__device__ __forceinline__ uint64_t RotationDescriptor(uint32_t lower_half) {
  constexpr uint64_t kSwizzle128 = 1, kEightRows = 1024 / 16;
  return (kSwizzle128 << 62) | (kEightRows << 32) | lower_half;
}

// Makes writes to shared memory, by this thread, visible to the multiplies that come later.
__device__ __forceinline__ void FenceForMultiplies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Orders writes to registers before the multiplies that follow.
__device__ __forceinline__ void BeginMultiplies() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void EndMultiplies() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitMultiplies() {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

// sums (+)= a [64, 16] b [16, 8 kTiles]; `add` false: the sums begin here.
template <int kTiles>
__device__ __forceinline__ void MultiplyGroup(float (&sum)[kTiles][4], const uint32_t (&a)[4],
                                              uint64_t b, bool add);

#define OSCAR_SUM(n) "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])

template <>
__device__ __forceinline__ void MultiplyGroup<8>(float (&sum)[8][4], const uint32_t (&a)[4],
                                                 uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
      "{%32,%33,%34,%35}, %36, add, 1, 1, 1;\n"
      "}\n"
      : OSCAR_SUM(0), OSCAR_SUM(1), OSCAR_SUM(2), OSCAR_SUM(3), OSCAR_SUM(4), OSCAR_SUM(5),
        OSCAR_SUM(6), OSCAR_SUM(7)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

template <>
__device__ __forceinline__ void MultiplyGroup<16>(float (&sum)[16][4], const uint32_t (&a)[4],
                                                  uint64_t b, bool add) {
  asm volatile(
      "{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
      "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
      "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
      "{%64,%65,%66,%67}, %68, add, 1, 1, 1;\n"
      "}\n"
      : OSCAR_SUM(0), OSCAR_SUM(1), OSCAR_SUM(2), OSCAR_SUM(3), OSCAR_SUM(4), OSCAR_SUM(5),
        OSCAR_SUM(6), OSCAR_SUM(7), OSCAR_SUM(8), OSCAR_SUM(9), OSCAR_SUM(10), OSCAR_SUM(11),
        OSCAR_SUM(12), OSCAR_SUM(13), OSCAR_SUM(14), OSCAR_SUM(15)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

#undef OSCAR_SUM

}  // namespace oscar
