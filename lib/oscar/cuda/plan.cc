#include "oscar/cuda/plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/decode_limits.h"

namespace oscar {
namespace {

// Tokens of one piece at most: sums inside the tensor cores are truncated, so they are kept short.
constexpr int64_t kMaxPieceTokens = 65536;

struct Segment {
  int64_t slot_begin;
  int64_t tokens;
  int64_t tile_tokens;
  int64_t tile_cost;  // of one full tile
  int32_t request;
  int32_t head_block;
  Tier tier;
};

// Requests in order, head blocks within, the row windows before the history.
std::vector<Segment> ListSegments(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                                  int64_t head_blocks) {
  const int64_t heads = shape.cache.heads / head_blocks;
  const int64_t token_cost[2] = {2 * heads * (shape.cache.CodeBytes() + shape.cache.ScaleBytes()),
                                 4 * heads * shape.cache.dim * kRowCostPercent / 100};
  std::vector<Segment> segments;
  int64_t begin[2] = {0, 0};
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int64_t tokens[2] = {lengths[r].quantised, lengths[r].rows};
    for (const int64_t count : tokens) {
      if (count < 0 || count > std::numeric_limits<int32_t>::max()) {
        throw Error(ErrorCode::kUsage,
                    "request " + std::to_string(r) + " has " + std::to_string(count) + " tokens");
      }
    }
    for (int64_t block = 0; block < head_blocks; ++block) {
      // A request without tokens has one empty segment: somebody has to write its result.
      if (tokens[0] + tokens[1] == 0) {
        segments.push_back(
            {0, 0, 1, 0, static_cast<int32_t>(r), static_cast<int32_t>(block), Tier::kQuantised});
      }
      for (const Tier tier : {Tier::kRows, Tier::kQuantised}) {
        const auto which = static_cast<size_t>(tier);
        if (tokens[which] == 0) continue;
        const int64_t tile = TileTokens(shape, tier);
        segments.push_back({begin[which], tokens[which], tile, tile * token_cost[which],
                            static_cast<int32_t>(r), static_cast<int32_t>(block), tier});
      }
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
  return segments;
}

void AddPiece(DecodePlan& plan, const Segment& segment, int64_t first, int64_t tokens) {
  plan.pieces.push_back({segment.slot_begin + first, static_cast<int32_t>(tokens), segment.request,
                         segment.head_block, segment.tier, static_cast<int32_t>(plan.pieces.size()),
                         0});
}

// Deals the tiles of the segments out, in order, so that block b ends at (b + 1) / blocks of the
// total; a tile goes where its middle falls, after what a piece is taken to cost.
class Dealer {
 public:
  Dealer(DecodePlan& plan, int64_t total, int64_t blocks, int64_t piece_cost)
      : plan_(plan), total_(total), blocks_(blocks), piece_cost_(piece_cost) {}

  void Deal(const Segment& segment) {
    const int64_t tiles = (segment.tokens + segment.tile_tokens - 1) / segment.tile_tokens;
    if (tiles == 0) {
      OpenUntil(BlockOf(cost_));
      AddPiece(plan_, segment, 0, 0);
    }
    for (int64_t tile = 0; tile < tiles;) {
      const int64_t block = BlockOf(cost_ + piece_cost_ + segment.tile_cost / 2);
      OpenUntil(block);
      cost_ += piece_cost_;
      // Tiles whose middle lies before the block's end; the last block takes what is left.
      const int64_t room = (block + 1) * total_ / blocks_ - cost_ - segment.tile_cost / 2;
      int64_t count = (room + segment.tile_cost - 1) / segment.tile_cost;
      if (block == blocks_ - 1) count = tiles;
      count = std::clamp<int64_t>(count, 1, tiles - tile);
      count = std::min(count, std::max<int64_t>(1, kMaxPieceTokens / segment.tile_tokens));
      const int64_t first = tile * segment.tile_tokens;
      AddPiece(plan_, segment, first,
               std::min(count * segment.tile_tokens, segment.tokens - first));
      tile += count;
      cost_ += count * segment.tile_cost;
      ++pieces_;
      if (block != last_) block_cost_ = 0;
      last_ = block;
      block_cost_ += kPieceCost + count * segment.tile_cost;
      dearest_ = std::max(dearest_, block_cost_);
    }
  }

  // Pieces with tokens, and what the dearest block costs with its pieces.
  int64_t pieces() const { return pieces_; }
  int64_t dearest() const { return dearest_; }

 private:
  int64_t BlockOf(int64_t cost) const {
    return std::min(blocks_ - 1, cost * blocks_ / std::max<int64_t>(total_, 1));
  }
  // Blocks up to `block` begin at the piece that comes next.
  void OpenUntil(int64_t block) {
    while (static_cast<int64_t>(plan_.block_begin.size()) <= block) {
      plan_.block_begin.push_back(static_cast<int32_t>(plan_.pieces.size()));
    }
  }

  DecodePlan& plan_;
  int64_t total_, blocks_, piece_cost_;
  int64_t cost_ = 0, pieces_ = 0;
  int64_t last_ = -1, block_cost_ = 0, dearest_ = 0;
};

// The pieces of all segments. By bytes first, then with what so many pieces cost: they are not the
// same pieces, so the better of the two.
void DealSegments(const std::vector<Segment>& segments, DecodePlan& plan) {
  int64_t total = 0, tiles = 0;
  for (const Segment& s : segments) {
    const int64_t count = (s.tokens + s.tile_tokens - 1) / s.tile_tokens;
    total += count * s.tile_cost;
    tiles += count;
  }
  const int64_t used = std::clamp<int64_t>(tiles, 1, plan.blocks);
  const auto deal = [&](DecodePlan& into, int64_t piece_cost, int64_t pieces) {
    Dealer dealer(into, total + piece_cost * pieces, used, piece_cost);
    for (const Segment& segment : segments) dealer.Deal(segment);
    return dealer;
  };
  DecodePlan counted;
  const Dealer by_bytes = deal(plan, 0, 0);
  const Dealer with_pieces = deal(counted, kPieceCost, by_bytes.pieces());
  if (with_pieces.dearest() < by_bytes.dearest() &&
      counted.partials() <= MaxPieces(plan.requests, plan.head_blocks, plan.blocks)) {
    plan.pieces = std::move(counted.pieces);
    plan.block_begin = std::move(counted.block_begin);
  }
  // Blocks behind the last piece have none.
  while (static_cast<int64_t>(plan.block_begin.size()) < plan.blocks + 1) {
    plan.block_begin.push_back(static_cast<int32_t>(plan.pieces.size()));
  }
}

}  // namespace

int64_t HeadsPerBlock(const DecodeShape& shape) {
  int64_t heads =
      int64_t{1} << MaxHeadsLog2(shape.cache.dim, shape.cache.groups, shape.GroupSize());
  while (shape.cache.heads % heads != 0) heads /= 2;
  return heads;
}

int64_t TileTokens(const DecodeShape& shape, Tier tier) {
  const CacheShape& c = shape.cache;
  return (tier == Tier::kQuantised ? kQuantisedWarpTokens : kRowWarpTokens) *
         DecodeWarps(c.dim, c.groups, shape.GroupSize()) /
         (HeadsPerBlock(shape) * ColumnWarps(c.dim, c.groups, shape.GroupSize()));
}

int64_t MaxPieces(int64_t requests, int64_t head_blocks, int64_t blocks) {
  // Every segment and every border between blocks opens at most one piece; shares above
  // kMaxPieceTokens are cut, for which there is room up to four pieces a block.
  return 2 * requests * head_blocks + 4 * blocks;
}

int64_t PlanBlocks(const DecodeShape& /*shape*/, int multiprocessors) { return multiprocessors; }

DecodePlan PlanDecode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                      int64_t blocks) {
  CheckDecodeShape(shape);
  OSCAR_CHECK(blocks > 0);
  DecodePlan plan;
  plan.requests = static_cast<int64_t>(lengths.size());
  plan.head_blocks = shape.cache.heads / HeadsPerBlock(shape);
  plan.blocks = blocks;
  DealSegments(ListSegments(shape, lengths, plan.head_blocks), plan);
  // Pieces are ordered by request, head block and token: count them.
  plan.partial_begin.assign(static_cast<size_t>(plan.requests * plan.head_blocks + 1), 0);
  for (const PlanPiece& piece : plan.pieces) {
    ++plan.partial_begin[static_cast<size_t>(piece.request * plan.head_blocks + piece.head_block +
                                             1)];
  }
  for (size_t i = 1; i < plan.partial_begin.size(); ++i) {
    plan.partial_begin[i] += plan.partial_begin[i - 1];
  }
  return plan;
}

}  // namespace oscar
