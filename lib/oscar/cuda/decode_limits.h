// Sizes that planner, launcher and kernels of the decode attention agree on. Plain C++.
#pragma once

#include <cstdint>

namespace oscar {

// Tokens that one warp takes of a tile: two matrix-multiply tiles of 16 codes, one of bf16 rows.
inline constexpr int kQuantisedWarpTokens = 32;
inline constexpr int kRowWarpTokens = 16;
// After so many tiles of 2-bit tokens a warp takes the mean off its sums of codes (Centre).
inline constexpr int kCentreTiles = 16;
inline constexpr int kMaxGroupSize = 16;
inline constexpr int kSharedBytesPerBlock = 227 * 1024;  // compute capability 9.0, with the opt-in
// Warps that only copy tiles, beside those that compute: one warp group, the unit in which
// registers move from one kind to the other.
inline constexpr int kCopyWarps = 4;
// The kernel that adds partial results up: warps of a block, and rounds of copies under way. Its
// blocks fit beside those of the attention (DecodeTraits).
inline constexpr int kMergeWarpsLog2 = 2, kMergeWarps = 1 << kMergeWarpsLog2;
inline constexpr int kMergeRounds = 5;
inline constexpr int kMergeRegisters = 32;  // of a thread
inline constexpr int kMergeBlocks =         // that these suffice for, of a multiprocessor
    65536 / (32 * kMergeWarps * kMergeRegisters);
inline constexpr int kMergeSharedBytes = kMergeWarps * kMergeRounds * 1280;

// At most four query heads per KV head meet the codes of keys as integers times a power of two: in
// channels of fields 0 and 2 of a byte, multiples of 2^-kFixedBits of the largest power of two in
// the head's largest number, in the others, of four times that.
inline constexpr uint32_t kFixedBits = 21;

// More meet them in half precision. At which bit of the 16 of an operand a field of the keys' codes
// then stands, four bits per field: 0-3 of the even bytes, then 0-3 of the odd ones. Subnormals
// take bits 0-9. The multiply aligns its 16 products and the sum so far by their exponents, with
// that of the least normal number for subnormals, and drops what lies 25 bits below the largest:
// next to a query q, what is below 2^-(15 + bit) q. So fields stand as high as two shifts take
// them: the first three go up by four bits, the last three down by six.
inline constexpr uint32_t kKeyFieldBits = 0x86486864;
// Queries are multiplied by 2^(10 - bit).
inline constexpr int kKeyFieldTop = 10;

// The most stages of a ring. For racecheck two names of barriers to each.
#ifdef OSCAR_RACECHECK
inline constexpr int kMaxStages = 6;
#else
inline constexpr int kMaxStages = 8;
#endif

// Warps of a block that compute; one block per multiprocessor. Accumulators and queries of eight
// query heads take 3/8 dim registers a thread, several groups some 60 more.
constexpr int DecodeWarps(int64_t dim, int64_t groups, int64_t group_size) {
  return dim > 128 || groups > 1 ? 8 : group_size <= 8 ? 16 : 12;
}
// Warps that share a head's tokens: where more than eight query heads per KV head do not fit the
// registers of one warp, it takes the first eight of them, another the rest.
constexpr int ColumnWarps(int64_t dim, int64_t groups, int64_t group_size) {
  return group_size > 8 && (dim > 128 || groups > 1) ? 2 : 1;
}
// The most KV heads of a block, as a power of two: a tile has at least 64 tokens.
constexpr int MaxHeadsLog2(int64_t dim, int64_t groups, int64_t group_size) {
  return (DecodeWarps(dim, groups, group_size) == 16 ? 3 : 2) -
         (ColumnWarps(dim, groups, group_size) - 1);
}

// Whether plans may give blocks half of 2^heads_log2 KV heads: where a context is short, the fewer
// partial results of a longer run of tokens make up for narrower reads. Kernels for eight heads
// can.
constexpr bool MayHalveHeads(int64_t dim, int64_t groups, int64_t group_size, int64_t heads_log2) {
  return heads_log2 == 3 && MaxHeadsLog2(dim, groups, group_size) == 3;
}

// Launch limits of one instance. kCols: query heads that columns of the matrix multiply hold, 4
// (in every other column), 8 or 16. kGroupCount: 1, or 4 for 2 and 4 groups per row.
// kHeadsLog2: KV heads per block, -1 where only known at run time.
template <int kDim, int kCols, int kGroupCount, int kHeadsLog2>
struct DecodeTraits {
  static constexpr int kGroups = kGroupCount;
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static_assert(kCols == 4 || kCols == 8 || kCols == 16);
  static_assert(kGroups == 1 || kGroups == 4);
  static_assert(kHeadsLog2 <= MaxHeadsLog2(kDim, kGroups, kCols));

  static constexpr int kWarps = DecodeWarps(kDim, kGroups, kCols);
  static constexpr int kThreads = 32 * (kWarps + kCopyWarps);
  // Tokens that the copying warps take at a time, in equal shares: tiles are whole steps.
  static constexpr int kQuantisedStep = kWarps == 12 ? 96 : 64, kRowStep = kWarps == 12 ? 16 : 32;
  // Registers of a thread: what a launch gives to every thread, and how it is then shared out.
  static constexpr int kComputeRegisters = kWarps == 16 ? 104 : kWarps == 12 ? 144 : 208;
  static constexpr int kCopyRegisters = 64;
  static constexpr int kLaunchRegisters = kWarps == 16 ? 96 : kWarps == 12 ? 128 : 168;
  static_assert(kWarps * kComputeRegisters + kCopyWarps * kCopyRegisters <=
                (kWarps + kCopyWarps) * kLaunchRegisters);
  // Beside those of sixteen warps there are registers for the sums; beside others they begin later.
  static_assert(kWarps < 16 ||
                ((kWarps + kCopyWarps) * kLaunchRegisters + kMergeWarps * kMergeRegisters) * 32 <=
                    65536);
  static constexpr bool kMayHalveHeads = MayHalveHeads(kDim, kGroups, kCols, kHeadsLog2);
  static constexpr int kLaneQueries = kCols == 4 ? 1 : 2;  // of eight columns, of a lane
  static constexpr int kColumnWarpsLog2 = ColumnWarps(kDim, kGroups, kCols) - 1;
  static constexpr int kColumnTiles = kCols == 16 && kColumnWarpsLog2 == 0 ? 2 : 1;  // of a warp

  // One stage of a quantised tile: K and V codes, K and V (scale, zero) as float32 at most.
  static constexpr int kCodeBytes = kWarps * kQuantisedWarpTokens * kDim / 4;
  static constexpr int kScaleBytes = kWarps * kQuantisedWarpTokens * kGroups * 8;
  static constexpr int kStageBytes = 2 * (kCodeBytes + kScaleBytes);
  // One stage of bf16 rows: K or V of a tile.
  static constexpr int kWarpRowBytes = kRowWarpTokens * kDim * 2;
  static constexpr int kRowStageBytes = kWarps * kWarpRowBytes;

  static constexpr int kBarrierBytes = 384;
  // A multiprocessor has 228 KiB and keeps one for each of the two blocks.
  // With two column tiles a warp's queries stay in shared memory.
  static constexpr bool kParksQueries = kColumnTiles == 2;
  static constexpr int kParkedBytes = kParksQueries ? kDim / 16 * 512 : 0;  // of a warp
  static constexpr int kBesideBytes = kBarrierBytes + kWarps * kParkedBytes;
  static constexpr int kBudget = 226 * 1024 - kMergeSharedBytes - kBesideBytes;
  static_assert(kBudget + kBesideBytes <= kSharedBytesPerBlock);
  static constexpr int Min(int a, int b) { return a < b ? a : b; }
  static constexpr int kStages = Min(kBudget / kStageBytes, kMaxStages);
  static constexpr int kRowStages = Min(kBudget / kRowStageBytes, 4);
  static_assert(kStages >= 3 && kRowStages >= 3,
                "too little shared memory to keep loads in flight");

  // At the end of a piece every warp leaves results of four query heads in a stage: their numbers,
  // and maxima, sums and sums of zeros.
  static constexpr int kWarpResultBytes = 4 * (kDim * 4 + (kGroups == 1 ? 16 : 32));
  static_assert(kWarps * kWarpResultBytes <= kStageBytes &&
                    kWarps * kWarpResultBytes <= kRowStageBytes,
                "the results of a piece do not fit a stage");

  static constexpr int kTileBytes = kStages * kStageBytes > kRowStages* kRowStageBytes
                                        ? kStages* kStageBytes
                                        : kRowStages* kRowStageBytes;
  static constexpr int kSharedBytes = kTileBytes + kBesideBytes;
  // Full and empty barriers of every stage of either tier, and two words for every computing warp.
  static_assert(2 * (kStages + kRowStages) * 8 + 8 * kWarps <= kBarrierBytes);
};

}  // namespace oscar
