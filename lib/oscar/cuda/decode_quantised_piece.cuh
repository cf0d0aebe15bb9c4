// Partial attention over the 2-bit tokens of one piece: copies and the loop over tiles. Device
// code.
#pragma once

#include "oscar/cuda/decode_quantised_warp.cuh"

namespace oscar {

// The copies of one piece under way. Slot numbers run ahead of the tiles: group n of copies holds
// tile n and the slot numbers of tile n + kAhead.
template <typename Traits, int kDim, int kHeadsLog2>
struct QuantisedPipeline {
  static constexpr int kAhead = Traits::kDrifts ? Traits::kStages - 2 : Traits::kStages - 1;
  QuantisedLoader<Traits, kDim, kHeadsLog2> tiles;
  SlotCopier slots;

  __device__ QuantisedPipeline(const DecodeParams& p, const PlanPiece& piece, char* shared,
                               char* ring)
      : tiles(p, piece, shared, ring),
        slots(p.quantised_slots, piece.slot_begin, piece.tokens, tiles.tile_tokens(),
              p.quantised_slot_log2, 2 * Traits::kStages, SharedAddress(ring)) {}

  // Slot numbers of the first tiles: needs nothing that an earlier kernel writes.
  __device__ void StartSlots() {
    for (int i = 0; i < kAhead; ++i) slots.CopyNext();
    CommitCopies();
  }
  __device__ __forceinline__ void CopyNext() {
    tiles.CopyNext();
    slots.CopyNext();
    CommitCopies();
  }
};

// One piece of quantised tokens, by the whole block.
//
// Where warps drift: a warp arrives at the barrier of tile n + 1 before it works on tile n, once
// its own copies of tile n + 1 are there; it starts on tile n when all warps have arrived there,
// that is when the whole tile is in shared memory and tile n - 2 is done with, whose place the next
// copy takes.
template <int kDim, int kCols, int kGroups, int kHeadsLog2>
__device__ __forceinline__ void QuantisedPiece(const DecodeParams& p, const PlanPiece& piece,
                                               char* shared) {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  using Pipeline = QuantisedPipeline<Traits, kDim, kHeadsLog2>;
  constexpr int kStages = Traits::kStages;
  const uint32_t barriers = SharedAddress(shared + Traits::kTileBytes);
  Pipeline pipeline(p, piece, shared, shared + Traits::kTileBytes + Traits::kBarrierBytes);
  pipeline.StartSlots();
  if (Traits::kDrifts && threadIdx.x < kStages)
    InitBarrier(barriers + 8 * threadIdx.x, Traits::kWarps);
  WaitCopies<0>();
  WaitForPredecessors();
  __syncthreads();
  for (int i = 0; i < Pipeline::kAhead; ++i) pipeline.CopyNext();
  QuantisedWarp<kDim, kCols, kGroups, kHeadsLog2> warp(p, piece);
  const uint32_t stages = SharedAddress(shared);
  const bool arrives = (threadIdx.x & 31) == 0;
  int stage = 0;
  uint32_t parity = 0;
  int left = piece.tokens - warp.part * kQuantisedWarpTokens;
  const int tile_tokens = pipeline.tiles.tile_tokens();
  if constexpr (Traits::kDrifts) {
    WaitCopies<Pipeline::kAhead - 1>();
    __syncwarp();
    if (arrives) ArriveAtBarrier(barriers);
  }
  for (int done = 0; done < piece.tokens; done += tile_tokens) {
    if constexpr (Traits::kDrifts) {
      WaitCopies<kStages - 4>();
      __syncwarp();
      if (arrives) ArriveAtBarrier(barriers + 8 * (stage + 1 == kStages ? 0 : stage + 1));
      WaitAtBarrier(barriers + 8 * stage, parity);
    } else {
      WaitCopies<kStages - 2>();
      __syncthreads();
    }
    pipeline.CopyNext();
    const int offset = stage * Traits::kStageBytes;
    warp.Tile(p, stages + static_cast<uint32_t>(offset), shared + offset + 2 * Traits::kCodeBytes,
              left);
    left -= tile_tokens;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    parity ^= stage == 0 ? 1U : 0U;
  }
  WaitCopies<0>();
  __syncthreads();
  if (Traits::kDrifts && threadIdx.x < kStages) InvalidateBarrier(barriers + 8 * threadIdx.x);
  warp.Finish(shared);
  __syncthreads();
  MergeWarps<Traits, kDim, kCols, kHeadsLog2>(p, piece, shared);
}

}  // namespace oscar
