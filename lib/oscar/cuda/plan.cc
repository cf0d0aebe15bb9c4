#include "oscar/cuda/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/plan_deal.h"

namespace oscar {
namespace {

// With half the heads per block there are half as many partial results to leave and to add up, but
// (scale, zero) are read in pieces that may be less than memory delivers. It is worth it where the
// dearest block costs at most kHalvedCost, and gets dearer by at most kHalvedGain, in bytes of
// 2-bit tokens. Measured.
constexpr int64_t kHalvedCost = 700 * 1024, kHalvedGain = 20 * 1024;

// Cuts shares of up to kMaxCuts pieces where their sums demand it, longer ones into as many; those
// of rows into up to kMaxRowCuts.
void LimitPieces(std::vector<Segment>& segments, int64_t blocks) {
  int64_t tiles = 0, row_tiles = 0;
  for (const Segment& s : segments) {
    (s.tier == Tier::kQuantised ? tiles : row_tiles) += s.Tiles();
  }
  const auto share = [&](int64_t all, int64_t cuts) {
    return (all + cuts * blocks - 1) / (cuts * blocks);
  };
  for (Segment& s : segments) {
    s.most_tiles =
        s.tier == Tier::kQuantised
            ? std::max(kMaxQuantisedTiles, share(tiles, kMaxCuts))
            : std::max({int64_t{1}, kMaxRowTokens / s.tile_tokens, share(row_tiles, kMaxRowCuts)});
  }
}

// Requests in order, head blocks within, the row windows before the history.
std::vector<Segment> ListSegments(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                                  int64_t head_blocks, int64_t blocks) {
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
        const int64_t tile = TileTokens(shape, heads, tier);
        segments.push_back({begin[which], tokens[which], tile, tile * token_cost[which],
                            static_cast<int32_t>(r), static_cast<int32_t>(block), tier});
      }
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
  LimitPieces(segments, blocks);
  return segments;
}

// `plan` has the pieces of its requests and head blocks in order, by token: counts them.
void CountPartials(DecodePlan& plan) {
  plan.partial_begin.assign(static_cast<size_t>(plan.requests * plan.head_blocks + 1), 0);
  for (const PlanPiece& piece : plan.pieces) {
    ++plan.partial_begin[static_cast<size_t>(piece.request * plan.head_blocks + piece.head_block +
                                             1)];
  }
  for (size_t i = 1; i < plan.partial_begin.size(); ++i) {
    plan.partial_begin[i] += plan.partial_begin[i - 1];
  }
}

struct Candidate {
  DecodePlan plan;
  int64_t dearest = 0;
};

Candidate PlanWith(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                   int64_t blocks, int64_t heads_per_block) {
  Candidate candidate;
  DecodePlan& plan = candidate.plan;
  plan.requests = static_cast<int64_t>(lengths.size());
  plan.head_blocks = shape.cache.heads / heads_per_block;
  plan.blocks = blocks;
  candidate.dearest = DealSegments(ListSegments(shape, lengths, plan.head_blocks, blocks), plan);
  return candidate;
}

}  // namespace

int64_t MostHeadsPerBlock(const DecodeShape& shape) {
  int64_t heads =
      int64_t{1} << MaxHeadsLog2(shape.cache.dim, shape.cache.groups, shape.GroupSize());
  while (shape.cache.heads % heads != 0) heads /= 2;
  return heads;
}

int64_t LeastHeadsPerBlock(const DecodeShape& shape) {
  const int64_t most = MostHeadsPerBlock(shape);
  return MayHalveHeads(shape.cache.dim, shape.cache.groups, shape.GroupSize(),
                       std::countr_zero(static_cast<uint64_t>(most)))
             ? most / 2
             : most;
}

void CheckPlan(const DecodePlan& plan, const DecodeShape& shape) {
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kUsage, "this is no plan of decode attention: " + what);
  };
  const int64_t heads = plan.head_blocks > 0 ? shape.cache.heads / plan.head_blocks : 0;
  if (heads * plan.head_blocks != shape.cache.heads ||
      (heads != MostHeadsPerBlock(shape) && heads != LeastHeadsPerBlock(shape))) {
    refuse(std::to_string(plan.head_blocks) + " blocks of heads for " +
           std::to_string(shape.cache.heads) + " KV heads");
  }
  const auto is_list = [&](const std::vector<int32_t>& begins, int64_t count) {
    return count >= 0 && static_cast<int64_t>(begins.size()) == count + 1 && begins.front() == 0 &&
           begins.back() == plan.partials() && std::is_sorted(begins.begin(), begins.end());
  };
  if (!is_list(plan.block_begin, plan.blocks)) refuse("its blocks do not hold its pieces");
  if (!is_list(plan.partial_begin, plan.requests * plan.head_blocks)) {
    refuse("its requests do not hold its partial results");
  }
  for (size_t i = 0; i < plan.pieces.size(); ++i) {
    const PlanPiece& piece = plan.pieces[i];
    const int64_t row = piece.request * plan.head_blocks + piece.head_block;
    if (piece.partial != static_cast<int32_t>(i) || piece.tokens < 0 || piece.request < 0 ||
        piece.head_block < 0 || piece.head_block >= plan.head_blocks ||
        row >= plan.requests * plan.head_blocks) {
      refuse("piece " + std::to_string(i) + " is out of place");
    }
  }
}

std::vector<PlanPiece> PiecesForDevice(const DecodePlan& plan) {
  PlanPiece none{};
  none.following = -1;
  const auto blocks = static_cast<size_t>(plan.blocks);
  std::vector<PlanPiece> pieces(blocks, none);
  pieces.insert(pieces.end(), plan.pieces.begin(), plan.pieces.end());
  for (size_t b = 0; b < blocks; ++b) {
    const auto begin = static_cast<size_t>(plan.block_begin[b]);
    const auto end = static_cast<size_t>(plan.block_begin[b + 1]);
    for (size_t i = begin; i < end; ++i) {
      pieces[blocks + i].following = static_cast<int32_t>(end - 1 - i);
    }
    if (begin < end) pieces[b] = pieces[blocks + begin];
  }
  return pieces;
}

PlanHead HeadOf(const DecodePlan& plan, const DecodeShape& shape) {
  return {static_cast<int32_t>(plan.requests),
          std::countr_zero(static_cast<uint64_t>(shape.cache.heads / plan.head_blocks))};
}

int64_t TileTokens(const DecodeShape& shape, int64_t heads, Tier tier) {
  const CacheShape& c = shape.cache;
  return (tier == Tier::kQuantised ? kQuantisedWarpTokens : kRowWarpTokens) *
         DecodeWarps(c.dim, c.groups, shape.GroupSize()) /
         (heads * ColumnWarps(c.dim, c.groups, shape.GroupSize()));
}

int64_t MaxPieces(int64_t requests, int64_t head_blocks, int64_t blocks) {
  // Every segment and every border between blocks opens at most one piece; long shares are cut, for
  // which there is room up to kMaxCuts pieces of 2-bit tokens and kMaxRowCuts of rows a block.
  return 2 * requests * head_blocks + (1 + kMaxCuts + kMaxRowCuts) * blocks;
}

int64_t PlanBlocks(const DecodeShape& /*shape*/, int multiprocessors) { return multiprocessors; }

DecodePlan PlanDecode(const DecodeShape& shape, std::span<const RequestLengths> lengths,
                      int64_t blocks, int64_t heads_per_block) {
  CheckDecodeShape(shape);
  OSCAR_CHECK(blocks > 0);
  const int64_t most = MostHeadsPerBlock(shape), least = LeastHeadsPerBlock(shape);
  OSCAR_CHECK(heads_per_block == 0 || heads_per_block == most || heads_per_block == least);
  Candidate best = PlanWith(shape, lengths, blocks, heads_per_block == 0 ? most : heads_per_block);
  if (heads_per_block == 0 && least < most && best.dearest <= kHalvedCost) {
    Candidate halved = PlanWith(shape, lengths, blocks, least);
    if (halved.dearest <= best.dearest + kHalvedGain) best = std::move(halved);
  }
  CountPartials(best.plan);
  return std::move(best.plan);
}

}  // namespace oscar
