// Who reads what in one decode step: tiles of all requests, dealt out evenly over the thread
// blocks. Plain C++, made on the host from lengths alone; one plan serves every layer of the step.
// Buffers have a fixed capacity, so that a captured CUDA graph goes on working with the next step's
// plan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/cuda/cache.h"

namespace oscar {

// What one decode call computes with.
struct DecodeShape {
  CacheShape cache;
  int64_t q_heads = 0;  // a multiple of cache.heads; at most 16 query heads per KV head

  int64_t GroupSize() const { return q_heads / cache.heads; }
};

// Throws Error(kUnsupported) or Error(kUsage) naming what the decode kernels do not handle.
void CheckDecodeShape(const DecodeShape& shape);

// KV heads that one thread block serves together, at most and at least: 8, 4, 2 or 1. The most are
// those that the kernels take (MaxHeadsLog2) and that divide the heads; a plan may have half as
// many where the kernels can (MayHalveHeads).
int64_t MostHeadsPerBlock(const DecodeShape& shape);
int64_t LeastHeadsPerBlock(const DecodeShape& shape);

// Tokens of one request, as slots in the two tiers. Slots of a request are consecutive in the slot
// lists, requests follow one another.
struct RequestLengths {
  int64_t quantised = 0;
  int64_t rows = 0;
};

// How long a piece may be. Sums inside the tensor cores are truncated: every multiply takes up to
// 2^-24 off a sum. Those of codes, which are all positive, are centred again and again
// (kCentreTiles), so that 8192 tokens of a warp keep an output, which is small beside them, within
// 1e-3 (tests/cuda/multiply_model_test.cc). Sums of bf16 rows have both signs.
inline constexpr int64_t kMaxQuantisedTiles = 256;
inline constexpr int64_t kMaxRowTokens = 65536;
// Pieces that the share of one block is cut into for this: longer shares have longer pieces.
inline constexpr int64_t kMaxCuts = 6, kMaxRowCuts = 4;

enum class Tier : int32_t { kQuantised = 0, kRows = 1 };

// A run of tokens of one request and one block of heads, read by one thread block.
struct PlanPiece {
  int64_t slot_begin;  // index of the first token in the tier's slot list
  int32_t tokens;      // 0 only in the one piece of a request without tokens
  int32_t request;
  int32_t head_block;
  Tier tier;
  int32_t partial;    // where the partial result goes: its own place in the plan
  int32_t following;  // pieces of the block behind it (PiecesForDevice)
};
static_assert(sizeof(PlanPiece) == 32);

// The work of one decode step. `pieces` of block b are [block_begin[b], block_begin[b + 1]); the
// partials of (request, head block) i = request * head_blocks + head_block are
// [partial_begin[i], partial_begin[i + 1]), in the order of the tokens.
struct DecodePlan {
  std::vector<PlanPiece> pieces;
  std::vector<int32_t> block_begin;
  std::vector<int32_t> partial_begin;
  int64_t requests = 0;
  int64_t head_blocks = 0;
  int64_t blocks = 0;

  int64_t partials() const { return static_cast<int64_t>(pieces.size()); }
};

// Throws Error(kUsage) on a plan that PlanDecode cannot have made for the shape: blocks of heads,
// lists that do not fit one another, pieces out of their place.
void CheckPlan(const DecodePlan& plan, const DecodeShape& shape);

// What kernels read: the first piece of every block, so that a block needs one read to begin, then
// all pieces of the plan. A block goes on with the piece behind `partial` among those as long as
// any are `following`, which is -1 in the first piece of a block that has none.
std::vector<PlanPiece> PiecesForDevice(const DecodePlan& plan);

// What kernels read of a plan beside its lists.
struct PlanHead {
  int32_t requests;
  int32_t heads_log2;  // KV heads per block
};
PlanHead HeadOf(const DecodePlan& plan, const DecodeShape& shape);

// Capacity of the buffers for any plan of up to `requests` requests on `blocks` thread blocks.
int64_t MaxPieces(int64_t requests, int64_t head_blocks, int64_t blocks);

// Thread blocks that fill `multiprocessors` with decode kernels of `shape`.
int64_t PlanBlocks(const DecodeShape& shape, int multiprocessors);

// What a piece costs beside its tokens, for its queries and its sums, in bytes of 2-bit tokens that
// a block could go through meanwhile.
inline constexpr int64_t kPieceCost = 100 * 1024;
// What bf16 rows cost of their bytes, in percent: they are not cut into fields. Rather too much
// than too little, which would leave their blocks behind all others.
inline constexpr int64_t kRowCostPercent = 80;

// Deals the tokens out to `blocks` blocks, in order, cut at tile borders: equal bytes, or the least
// that the dearest block can cost where that is less. Equal input gives an equal plan. Throws
// Error(kUsage) on a negative length. `blocks`: at least 1 (PlanBlocks). `heads_per_block`: the
// most or the least (MostHeadsPerBlock, LeastHeadsPerBlock); 0 leaves it to the planner.
DecodePlan PlanDecode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                      int64_t blocks, int64_t heads_per_block = 0);

// Tokens of one tile of a thread block that serves `heads` KV heads, by tier.
int64_t TileTokens(const DecodeShape& shape, int64_t heads, Tier tier);

}  // namespace oscar
