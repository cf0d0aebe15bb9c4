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
#ifdef OSCAR_RACECHECK
#include "oscar/cuda/decode_ring_named.cuh"
#endif

namespace oscar {

// Where one side stands in a ring of kStages stages of kStageBytes. Each stage has two barriers:
// full (the copies have landed) and empty (the readers are done). The barriers of a ring are
// kStages full ones, then kStages empty ones, kBehind bytes behind the beginning of the memory of
// the stages. With OSCAR_RACECHECK both sides wait at barriers that compute-sanitizer's racecheck
// follows (decode_ring_named.cuh), which copies far less ahead.
template <int kStages, int kStageBytes, int kBehind>
struct Ring {
  uint32_t stages;
  uint32_t stage = 0, parity = 0;
#ifdef OSCAR_RACECHECK
  NamedRing named;
#endif

  __device__ explicit Ring(uint32_t at) : stages(at) {}
  __device__ __forceinline__ uint32_t Full(uint32_t i) const { return stages + 8 * i + kBehind; }
  __device__ __forceinline__ uint32_t Empty(uint32_t i) const {
    return stages + 8 * i + (kBehind + 8 * kStages);
  }

#ifdef OSCAR_RACECHECK
  __device__ void WaitEmpty() { named.WaitEmpty(stage); }
  __device__ void SignalFull() { named.SignalFull(stage); }
  __device__ void WaitFull() const { named.WaitFull(stage); }
  __device__ void SignalEmpty() const { named.SignalEmpty(stage); }
#else
  // Copying side.
  __device__ __forceinline__ void WaitEmpty() const {
    WaitAtBarrier(Empty(stage), parity ^ 1);
  }
  __device__ __forceinline__ void SignalFull() const { ArriveAfterCopies(Full(stage)); }
  // Computing side.
  __device__ __forceinline__ void WaitFull() const { WaitAtBarrier(Full(stage), parity); }
  // One arrival per warp, after the warp's last read.
  __device__ __forceinline__ void SignalEmpty() const {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ArriveAtBarrier(Empty(stage));
  }
#endif

  // Of the stage in shared memory.
  __device__ __forceinline__ uint32_t address() const { return stages + stage * kStageBytes; }
  __device__ __forceinline__ void Advance() {
    ++stage;
    if (stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// Of a piece: those of the block behind it, and where its partial result goes, which is also its own
// place in the plan.
struct PieceEnd {
  int following, partial;
};

template <typename Traits>
struct Rings {
  static constexpr int kBarriers = 2 * (Traits::kStages + Traits::kRowStages);
  Ring<Traits::kStages, Traits::kStageBytes, Traits::kTileBytes> quantised;
  Ring<Traits::kRowStages, Traits::kRowStageBytes, Traits::kTileBytes + 16 * Traits::kStages> rows;

  __device__ explicit Rings(const char* shared)
      : quantised(SharedAddress(shared)), rows(quantised.stages) {
    Pin(quantised.stages);
    rows.stages = quantised.stages;  // the same register
  }

  // A warp that computes is short of registers: what it needs of a piece at its end, and where it
  // stands in the other ring, stay in shared memory until its last tile. Spilled, or read once
  // more, they would come from memory then, with the whole block waiting.
  __device__ __forceinline__ void Keep(const PieceEnd& end) const {
    static_assert(Traits::kRowStages <= 4);
    __syncwarp();  // all lanes have read what was kept before
    const auto following = static_cast<uint32_t>(end.following);
    StoreSharedWords(Kept(), following << 3 | rows.parity << 2 | rows.stage,
                     static_cast<uint32_t>(end.partial));
    __syncwarp();
  }
  // kRows: the other ring, of rows, as well.
  template <bool kRows>
  __device__ __forceinline__ PieceEnd TakeBack() {
    const uint2 kept = LoadSharedWords(Kept());
    if constexpr (kRows) {
      rows.stage = kept.x & 3;
      rows.parity = kept.x >> 2 & 1;
    }
    return {static_cast<int>(kept.x >> 3), static_cast<int>(kept.y)};
  }

  // Waits until the readers are done with everything of a tier that was ever handed over.
  __device__ __forceinline__ void WaitAllEmpty(Tier tier) {
    const bool is_rows = tier == Tier::kRows;
    const uint32_t end = is_rows ? Traits::kRowStages : Traits::kStages;
#ifdef OSCAR_RACECHECK
    for (uint32_t i = 0; i < end; ++i) (is_rows ? rows.named : quantised.named).WaitEmpty(i);
#else
    const uint32_t stage = is_rows ? rows.stage : quantised.stage;
    const uint32_t parity = is_rows ? rows.parity : quantised.parity;
    const uint32_t first = is_rows ? rows.Empty(0) : quantised.Empty(0);
#pragma unroll 1  // seldom, and what comes behind it is near then
    for (uint32_t i = 0; i < end; ++i) {
      WaitAtBarrier(first + 8 * i, i < stage ? parity : parity ^ 1);
    }
#endif
  }

  // By all threads. Each warp sets some barriers up: the lanes of one would take turns.
  __device__ __forceinline__ void Init() const {
    if ((threadIdx.x & 31) != 0) return;
    for (int i = static_cast<int>(threadIdx.x >> 5); i < kBarriers; i += Traits::kThreads / 32) {
      const int of_tier = i < 2 * Traits::kStages ? i : i - 2 * Traits::kStages;
      const bool full =
          i < 2 * Traits::kStages ? of_tier < Traits::kStages : of_tier < Traits::kRowStages;
      InitBarrier(quantised.Full(static_cast<uint32_t>(i)),
                  full ? 32 * kCopyWarps : Traits::kWarps);
    }
  }

  // What follows the barriers.
  __device__ __forceinline__ uint32_t Beside() const {
    return quantised.stages + Traits::kTileBytes + Traits::kBarrierBytes;
  }

 private:
  // The warp's two words behind the barriers.
  __device__ __forceinline__ uint32_t Kept() const {
    return quantised.stages + Traits::kTileBytes + 8 * kBarriers + (threadIdx.x >> 5) * 8;
  }
};

}  // namespace oscar
