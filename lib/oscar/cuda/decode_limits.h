// Sizes that planner, launcher and kernels of the decode attention agree on. Plain C++.
#pragma once

#include <cstdint>

namespace oscar {

inline constexpr int kDecodeWarps = 8;
inline constexpr int kDecodeThreads = 32 * kDecodeWarps;
// Tokens that one warp takes of a tile: two matrix-multiply tiles of 16 codes, one of bf16 rows.
inline constexpr int kQuantisedWarpTokens = 32;
inline constexpr int kRowWarpTokens = 16;
inline constexpr int kMaxHeadsPerBlock = 4;
inline constexpr int kMaxGroupSize = 16;
inline constexpr int kSharedBytesPerMultiprocessor = 227 * 1024;  // compute capability 9.0

// Launch limits of one instance. kCols: columns of the matrix multiply that hold query heads, 4 (two
// token tiles share the 8 columns), 8 or 16. kGroups: 1, or 4 for 2 and 4 groups per row.
template <int kDim, int kCols, int kGroupCount>
struct DecodeTraits {
  static constexpr int kGroups = kGroupCount;
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static_assert(kCols == 4 || kCols == 8 || kCols == 16);
  static_assert(kGroups == 1 || kGroups == 4);

  static constexpr int kColTiles = kCols == 16 ? 2 : 1;
  // Accumulators of the output and the queries take 0.5 * kDim * kColTiles registers: two blocks of
  // 256 threads per multiprocessor leave 128.
  static constexpr int kMinBlocks = kDim * kColTiles <= 128 ? 2 : 1;
  static constexpr int kSharedBudget = kSharedBytesPerMultiprocessor / kMinBlocks - 1024;

  // One stage of a quantised tile: K and V codes, K and V (scale, zero) as float32 at most.
  static constexpr int kWarpCodeBytes = kQuantisedWarpTokens * kDim / 4;
  static constexpr int kCodeBytes = kDecodeWarps * kWarpCodeBytes;
  static constexpr int kScaleBytes = kDecodeWarps * kQuantisedWarpTokens * kGroups * 8;
  static constexpr int kStageBytes = 2 * (kCodeBytes + kScaleBytes);
  // Stages that fit beside the slot numbers (int64) of two tiles a stage at 4 heads per block. With
  // fewer heads a tile has more tokens; the launcher adds the room, and where that halves the blocks
  // per multiprocessor the kernel only runs with less overlap.
  static constexpr int kWantedStages = kSharedBudget / (kStageBytes + (kMinBlocks == 1 ? 4096 : 1024));
  static constexpr int kStages = kWantedStages < 8 ? kWantedStages : 8;
  static_assert(kStages >= 3, "too little shared memory to keep loads in flight");

  // One stage of bf16 rows: K or V of a tile.
  static constexpr int kWarpRowBytes = kRowWarpTokens * kDim * 2;
  static constexpr int kRowStageBytes = kDecodeWarps * kWarpRowBytes;
  static constexpr int kRowStages = 3;
  static constexpr int kRowSlotTiles = 8;

  // Results of the eight warps, merged at the end of a piece; rows padded against bank conflicts.
  static constexpr int kMergeRow = kDim + 4;
  static constexpr int kMergeBytes = kDecodeWarps * 8 * kColTiles * (kMergeRow + 2) * 4;

  static constexpr int Max(int a, int b) { return a > b ? a : b; }
  static constexpr int kTileBytes =
      Max(Max(kStages * kStageBytes, kRowStages * kRowStageBytes), kMergeBytes);
  // Shared memory of a launch: the tiles, and the ring of slot numbers behind them.
  static constexpr int SharedBytes(int heads_log2, int slot_bytes) {
    return kTileBytes + 2 * kStages * ((kDecodeWarps * kQuantisedWarpTokens) >> heads_log2) * slot_bytes;
  }
  static_assert(SharedBytes(2, 8) <= kSharedBudget, "a block does not fit its share");
  static_assert(SharedBytes(0, 8) <= kSharedBytesPerMultiprocessor, "a block does not fit");
  static_assert(kRowSlotTiles * kRowWarpTokens <= 2 * kStages * kQuantisedWarpTokens);
};

}  // namespace oscar
