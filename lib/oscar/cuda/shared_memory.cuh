// Shared memory by its addresses: copies into it, reads and writes, and barriers. Device code only.
#pragma once

#include <cstdint>

namespace oscar {

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies kBytes (4, 8 or 16) to shared memory, or writes zeros when `wanted` is false.
template <int kBytes>
__device__ __forceinline__ void CopyAsync(uint32_t target, const void* source, bool wanted) {
  const int size = wanted ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source),
                 "r"(size)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(target), "l"(source),
                 "r"(size), "n"(kBytes)
                 : "memory");
  }
}

// The same for what is hardly read again: it is the first to leave the L2 cache, and pushes neither
// partial results nor plans out.
template <int kBytes>
__device__ __forceinline__ void CopyOnce(uint32_t target, const void* source, bool wanted) {
  const int size = wanted ? kBytes : 0;
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(target),
                 "l"(source), "r"(size), "l"(policy)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %3, %2, %4;" ::"r"(target),
                 "l"(source), "r"(size), "n"(kBytes), "l"(policy)
                 : "memory");
  }
}

__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's groups of copies are under way.
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Counts as one arrival at `barrier` once all copies of this thread so far have landed.
__device__ __forceinline__ void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// Barriers in shared memory (8 bytes each) at which warps arrive and wait apart, so that a fast
// warp may run ahead of a slow one.
__device__ __forceinline__ void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void ArriveAtBarrier(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase with this parity (0 for the first).
__device__ __forceinline__ void WaitAtBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// By addresses in shared memory, which take one register.
__device__ __forceinline__ uint32_t LoadShared(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
  return x;
}
__device__ __forceinline__ uint2 LoadSharedWords(uint32_t at) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(at));
  return x;
}
__device__ __forceinline__ void StoreSharedWords(uint32_t at, uint32_t x, uint32_t y) {
  asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(x), "r"(y) : "memory");
}
__device__ __forceinline__ void StoreShared2(uint32_t at, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(x), "f"(y) : "memory");
}
__device__ __forceinline__ void StoreShared4(uint32_t at, const float4& x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(x.x), "f"(x.y), "f"(x.z),
               "f"(x.w)
               : "memory");
}
__device__ __forceinline__ float4 LoadShared4(uint32_t at) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(at));
  return x;
}
__device__ __forceinline__ float2 LoadShared2(uint32_t at) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(at));
  return x;
}

// Barrier `name` (1 to 15) of `threads` threads of the block, whole warps.
__device__ __forceinline__ void SynchroniseSome(int name, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}
// A barrier of the first `threads` threads of the block only.
__device__ __forceinline__ void SynchroniseThreads(int threads) { SynchroniseSome(1, threads); }

}  // namespace oscar
