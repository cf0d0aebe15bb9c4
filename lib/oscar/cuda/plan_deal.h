// How the tokens of a decode step are dealt out over the thread blocks: what PlanDecode rests on.
// Plain C++.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/cuda/plan.h"

namespace oscar {

// Tokens of one request, tier and block of heads: what pieces are cut from, at tile borders.
struct Segment {
  int64_t slot_begin;
  int64_t tokens;  // 0: one piece without tokens
  int64_t tile_tokens;
  int64_t tile_cost;  // of one full tile, in bytes of 2-bit tokens
  int32_t request;
  int32_t head_block;
  Tier tier;
  int64_t most_tiles = 1;  // of one piece

  int64_t Tiles() const { return (tokens + tile_tokens - 1) / tile_tokens; }
};

// Fills pieces and block_begin of `plan`, whose other numbers are set, with the pieces of all
// segments in order. Returns what the dearest block costs: its tiles, and kPieceCost for each piece
// with tokens.
int64_t DealSegments(const std::vector<Segment>& segments, DecodePlan& plan);

}  // namespace oscar
