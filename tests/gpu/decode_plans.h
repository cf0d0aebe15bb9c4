// Plans that the planner would not make.
#pragma once

#include <algorithm>

#include "oscar/cuda/plan.h"

namespace oscar::test {

// The plan with its pieces cut into some of at most `tokens` tokens.
inline DecodePlan CutPlan(const DecodePlan& plan, int32_t tokens) {
  DecodePlan cut = plan;
  cut.pieces.clear();
  cut.block_begin.assign(1, 0);
  cut.partial_begin.assign(plan.partial_begin.size(), 0);
  const auto count = [&] { return static_cast<int32_t>(cut.pieces.size()); };
  for (size_t b = 0; b + 1 < plan.block_begin.size(); ++b) {
    for (int32_t i = plan.block_begin[b]; i < plan.block_begin[b + 1]; ++i) {
      PlanPiece piece = plan.pieces[static_cast<size_t>(i)];
      const int64_t row = piece.request * plan.head_blocks + piece.head_block;
      int32_t left = piece.tokens;
      do {
        piece.tokens = std::min(left, tokens);
        piece.partial = count();
        cut.pieces.push_back(piece);
        piece.slot_begin += piece.tokens;
        left -= piece.tokens;
      } while (left > 0);
      cut.partial_begin[static_cast<size_t>(row + 1)] = count();
    }
    cut.block_begin.push_back(count());
  }
  return cut;
}

// The plan with the pieces of each row of partial results and tier joined to one, in the first of
// its blocks.
inline DecodePlan JoinPieces(const DecodePlan& plan) {
  DecodePlan joined = plan;
  joined.pieces.clear();
  joined.block_begin.assign(1, 0);
  const auto count = [&] { return static_cast<int32_t>(joined.pieces.size()); };
  for (size_t b = 0; b + 1 < plan.block_begin.size(); ++b) {
    for (int32_t i = plan.block_begin[b]; i < plan.block_begin[b + 1]; ++i) {
      PlanPiece piece = plan.pieces[static_cast<size_t>(i)];
      if (PlanPiece* const last = joined.pieces.empty() ? nullptr : &joined.pieces.back();
          last != nullptr && last->request == piece.request &&
          last->head_block == piece.head_block && last->tier == piece.tier) {
        last->tokens += piece.tokens;
      } else {
        piece.partial = count();
        joined.pieces.push_back(piece);
      }
      const int64_t row = piece.request * plan.head_blocks + piece.head_block;
      joined.partial_begin[static_cast<size_t>(row + 1)] = count();
    }
    joined.block_begin.push_back(count());
  }
  return joined;
}

}  // namespace oscar::test
