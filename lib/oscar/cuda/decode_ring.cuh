// Stages of shared memory that go from the warps that copy to the warps that compute and back.
// Device code.
//
// Why nobody overwrites what another still reads: a copying thread writes to a stage only after
// WaitEmpty, whose phase ends when every computing warp has called SignalEmpty on the stage's last
// use, after its last access. A computing warp reads a stage only after WaitFull, whose phase ends
// when the copies of every copying thread have landed. At the end of a piece the copying warps hand
// one more stage over, empty, for the sums of the computing warps: they write to it after WaitFull,
// too, when all of them are done with what it held before, and order their accesses to it by
// SynchroniseThreads. The two tiers share memory but not barriers: before the other tier's first
// copy, the copying warps wait until all stages of the last one are empty.
#pragma once

#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Where one side stands in a ring of kStages stages of kStageBytes. Each stage has two barriers:
// full (the copies have landed) and empty (the readers are done). The barriers of a ring are
// kStages full ones, then kStages empty ones, kBehind bytes behind the beginning of the memory of
// the stages.
template <int kStages, int kStageBytes, int kBehind>
struct Ring {
  uint32_t stages;
  uint32_t stage = 0, parity = 0;

  __device__ explicit Ring(uint32_t at) : stages(at) {}
  __device__ __forceinline__ uint32_t Full(uint32_t i) const { return stages + 8 * i + kBehind; }
  __device__ __forceinline__ uint32_t Empty(uint32_t i) const {
    return stages + 8 * i + (kBehind + 8 * kStages);
  }

  // Copying side.
  __device__ __forceinline__ void WaitEmpty() const {
    WaitAtBarrier(Empty(stage), parity ^ 1);
  }
  __device__ __forceinline__ void SignalFull() const { ArriveAfterCopies(Full(stage)); }
  // Waits until the readers are done with everything that was ever handed over.
  __device__ void WaitAllEmpty() const {
    for (uint32_t i = 0; i < kStages; ++i) {
      WaitAtBarrier(Empty(i), i < stage ? parity : parity ^ 1);
    }
  }
  // Computing side.
  __device__ __forceinline__ void WaitFull() const { WaitAtBarrier(Full(stage), parity); }
  // One arrival per warp, after the warp's last read.
  __device__ __forceinline__ void SignalEmpty() const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ArriveAtBarrier(Empty(stage));
  }

  // Of the stage's memory, in the block and in shared memory.
  __device__ __forceinline__ uint32_t offset() const { return stage * kStageBytes; }
  __device__ __forceinline__ uint32_t address() const { return stages + offset(); }
  __device__ __forceinline__ void Advance() {
    ++stage;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <typename Traits>
struct Rings {
  static constexpr int kBarriers = 2 * (Traits::kStages + Traits::kRowStages);
  Ring<Traits::kStages, Traits::kStageBytes, Traits::kTileBytes> quantised;
  Ring<Traits::kRowStages, Traits::kRowStageBytes, Traits::kTileBytes + 16 * Traits::kStages> rows;

  __device__ explicit Rings(const char* shared)
      : quantised(SharedAddress(shared)), rows(quantised.stages) {
    Pin(quantised.stages);
    Pin(rows.stages);
  }

  // Sets one barrier up per thread.
  __device__ void Init() const {
    const int i = static_cast<int>(threadIdx.x);
    if (i >= kBarriers) return;
    const int of_tier = i < 2 * Traits::kStages ? i : i - 2 * Traits::kStages;
    const bool full =
        i < 2 * Traits::kStages ? of_tier < Traits::kStages : of_tier < Traits::kRowStages;
    InitBarrier(quantised.Full(static_cast<uint32_t>(i)),
                full ? 32 * kCopyWarps : Traits::kWarps);
  }
};

}  // namespace oscar
