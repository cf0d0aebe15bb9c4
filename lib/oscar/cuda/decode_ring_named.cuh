// The waits of a ring (decode_ring.cuh) at named barriers of the block, for compute-sanitizer's
// racecheck: it follows those, but not barriers in shared memory, which copies arrive at by
// themselves. Who waits for whom before which access is the same; every hand-over of a stage waits
// for its copies. Both tiers take the same names: no stage of one is under way while the other's are.
// Device code.
#pragma once

#include "oscar/cuda/decode_limits.h"

namespace oscar {

struct NamedRing {
  static constexpr uint32_t kFirst = 2;  // 0 is __syncthreads, 1 SynchroniseThreads
  static_assert(kFirst + 2 * kMaxStages <= 16, "a block has sixteen names");
  uint32_t handed = 0;  // stages that the copying side has handed over and not waited for since

  // Copying side.
  __device__ void WaitEmpty(uint32_t stage) {
    if ((handed >> stage & 1) == 0) return;
    Wait(kFirst + kMaxStages + stage);
    handed &= ~(1U << stage);
  }
  __device__ void SignalFull(uint32_t stage) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    Arrive(kFirst + stage);
    handed |= 1U << stage;
  }
  // Computing side.
  __device__ void WaitFull(uint32_t stage) const { Wait(kFirst + stage); }
  __device__ void SignalEmpty(uint32_t stage) const {
    __syncwarp();
    Arrive(kFirst + kMaxStages + stage);
  }

 private:
  // Every phase has all threads of the block, those of one side as arrivals.
  __device__ static void Wait(uint32_t name) {
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(blockDim.x) : "memory");
  }
  __device__ static void Arrive(uint32_t name) {
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(blockDim.x) : "memory");
  }
};

}  // namespace oscar
