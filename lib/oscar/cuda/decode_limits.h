// Sizes that planner, launcher and kernels of the decode attention agree on. Plain C++.
#pragma once

#include <cstdint>

namespace oscar {

// Tokens that one warp takes of a tile: two matrix-multiply tiles of 16 codes, one of bf16 rows.
inline constexpr int kQuantisedWarpTokens = 32;
inline constexpr int kRowWarpTokens = 16;
inline constexpr int kMaxGroupSize = 16;
inline constexpr int kSharedBytesPerMultiprocessor = 227 * 1024;  // compute capability 9.0

// KV heads per block and warps. Eight heads with sixteen warps read whole 64-byte pieces even of
// (scale, zero) and leave one block per multiprocessor; where the registers do not allow that or
// the heads do not divide by eight, eight warps take four, two or one head.
inline constexpr int kWideHeadsLog2 = 3;
constexpr int DecodeWarps(int heads_log2) { return heads_log2 == kWideHeadsLog2 ? 16 : 8; }
constexpr bool AllowsWideBlocks(int64_t dim, int64_t group_size) {
  return dim <= 128 && group_size <= 8;
}

// Launch limits of one instance. kCols: columns of the matrix multiply that hold query heads, 4
// (two token tiles share the 8 columns), 8 or 16. kGroups: 1, or 4 for 2 and 4 groups per row.
// kHeadsLog2: KV heads per block, -1 where only known at run time (at most 4).
template <int kDim, int kCols, int kGroupCount, int kHeadsLog2>
struct DecodeTraits {
  static constexpr int kGroups = kGroupCount;
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static_assert(kCols == 4 || kCols == 8 || kCols == 16);
  static_assert(kGroups == 1 || kGroups == 4);
  static_assert(kHeadsLog2 != kWideHeadsLog2 || AllowsWideBlocks(kDim, kCols));

  static constexpr int kWarps = DecodeWarps(kHeadsLog2);
  static constexpr int kThreads = 32 * kWarps;
  static constexpr bool kSharedColumns = kCols == 4;
  static constexpr int kColTiles = kCols == 16 ? 2 : 1;
  // Accumulators of the output and the queries take 0.5 * kDim * kColTiles registers: 512
  // threads per multiprocessor leave 128.
  static constexpr int kMinBlocks = kWarps == 8 && kDim * kColTiles <= 128 ? 2 : 1;
  static constexpr int kSharedBudget = kSharedBytesPerMultiprocessor / kMinBlocks - 1024;

  // One stage of a quantised tile: K and V codes, K and V (scale, zero) as float32 at most.
  static constexpr int kCodeBytes = kWarps * kQuantisedWarpTokens * kDim / 4;
  static constexpr int kScaleBytes = kWarps * kQuantisedWarpTokens * kGroups * 8;
  static constexpr int kStageBytes = 2 * (kCodeBytes + kScaleBytes);
  // Stages that fit beside the slot numbers (int64) of two tiles a stage at 4 heads per block. With
  // fewer heads a tile has more tokens; the launcher adds the room, and where that halves the
  // blocks per multiprocessor the kernel only runs with less overlap.
  static constexpr int kWantedStages =
      kSharedBudget / (kStageBytes + (kMinBlocks == 1 && kWarps == 8 ? 4096 : 1024));
  static constexpr int kStages = kWantedStages < 8 ? kWantedStages : 8;
  static_assert(kStages >= 3, "too little shared memory to keep loads in flight");

  // One stage of bf16 rows: K or V of a tile.
  static constexpr int kWarpRowBytes = kRowWarpTokens * kDim * 2;
  static constexpr int kRowStageBytes = kWarps * kWarpRowBytes;
  static constexpr int kRowStages = 3;
  static constexpr int kRowSlotTiles = 8;

  // Results of the eight warps, merged at the end of a piece; rows padded against bank conflicts.
  static constexpr int kMergeRow = kDim + 4;
  static constexpr int kMergeBytes = kWarps * 8 * kColTiles * (kMergeRow + 2) * 4;

  static constexpr int Max(int a, int b) { return a > b ? a : b; }
  static constexpr int kTileBytes =
      Max(Max(kStages * kStageBytes, kRowStages* kRowStageBytes), kMergeBytes);
  // With four stages or more the warps may drift apart by a tile; with three they go in step.
  static constexpr bool kDrifts = kStages >= 4;
  static constexpr int kBarrierBytes = 64;  // one barrier per stage
  // Shared memory of a launch: the tiles, the barriers, and the ring of slot numbers behind them.
  static constexpr int SharedBytes(int heads_log2, int slot_bytes) {
    return kTileBytes + kBarrierBytes +
           2 * kStages * ((kWarps * kQuantisedWarpTokens) >> heads_log2) * slot_bytes;
  }
  static_assert(SharedBytes(kWarps == 16 ? 3 : 2, 8) <= kSharedBudget,
                "a block does not fit its share");
  static_assert(SharedBytes(kWarps == 16 ? 3 : 0, 8) <= kSharedBytesPerMultiprocessor,
                "a block does not fit");
  static_assert(kRowSlotTiles * kRowWarpTokens <= 2 * kStages * kQuantisedWarpTokens);
};

}  // namespace oscar
