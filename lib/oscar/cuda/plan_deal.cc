#include "oscar/cuda/plan_deal.h"

#include <algorithm>
#include <utility>

namespace oscar {
namespace {

// Collects pieces, block after block.
class Dealer {
 public:
  explicit Dealer(DecodePlan& plan) : plan_(plan) {}

  // The next piece: `tiles` tiles of `segment` from `first` on, for `block`, which is no earlier
  // than that of the last one.
  void Add(int64_t block, const Segment& segment, int64_t first, int64_t tiles) {
    OpenUntil(block);
    const int64_t begin = first * segment.tile_tokens;
    const int64_t tokens = std::min(tiles * segment.tile_tokens, segment.tokens - begin);
    plan_.pieces.push_back({segment.slot_begin + begin, static_cast<int32_t>(tokens),
                            segment.request, segment.head_block, segment.tier,
                            static_cast<int32_t>(plan_.pieces.size()), 0});
    if (tiles > 0) block_cost_ += kPieceCost + tiles * segment.tile_cost;
    dearest_ = std::max(dearest_, block_cost_);
  }
  // Blocks behind the last piece have none. What the dearest block costs.
  int64_t Finish() {
    OpenUntil(plan_.blocks);
    return dearest_;
  }

 private:
  // Blocks up to `block` begin at the piece that comes next.
  void OpenUntil(int64_t block) {
    while (static_cast<int64_t>(plan_.block_begin.size()) <= block) {
      plan_.block_begin.push_back(static_cast<int32_t>(plan_.pieces.size()));
      block_cost_ = 0;
    }
  }

  DecodePlan& plan_;
  int64_t block_cost_ = 0, dearest_ = 0;
};

// Equal bytes: of `blocks` blocks, block b ends at (b + 1) / blocks of all tiles' cost, and a tile
// goes where its middle falls.
void DealEvenly(const std::vector<Segment>& segments, int64_t total, int64_t blocks,
                Dealer& dealer) {
  int64_t cost = 0;
  const auto block_at = [&](int64_t at) {
    return std::min(blocks - 1, at * blocks / std::max<int64_t>(total, 1));
  };
  for (const Segment& s : segments) {
    const int64_t tiles = s.Tiles();
    if (tiles == 0) dealer.Add(block_at(cost), s, 0, 0);
    for (int64_t tile = 0; tile < tiles;) {
      const int64_t block = block_at(cost + s.tile_cost / 2);
      // Tiles whose middle lies before the block's end; the last block takes what is left.
      const int64_t room = (block + 1) * total / blocks - cost - s.tile_cost / 2;
      int64_t count = block == blocks - 1 ? tiles : (room + s.tile_cost - 1) / s.tile_cost;
      count = std::clamp<int64_t>(count, 1, tiles - tile);
      count = std::min(count, s.most_tiles);
      dealer.Add(block, s, tile, count);
      tile += count;
      cost += count * s.tile_cost;
    }
  }
}

// Fills one block after the other up to `capacity`, which holds a piece of one tile of any segment:
// add(block, segment, first tile, tiles). The blocks that it takes, which are the fewest.
template <typename Add>
int64_t Fill(const std::vector<Segment>& segments, int64_t capacity, Add add) {
  int64_t block = 0, room = capacity;
  for (const Segment& s : segments) {
    const int64_t tiles = s.Tiles();
    if (tiles == 0) add(block, s, 0, 0);
    for (int64_t tile = 0; tile < tiles;) {
      if (room < kPieceCost + s.tile_cost) {
        ++block;
        room = capacity;
      }
      const int64_t count =
          std::min({tiles - tile, s.most_tiles, (room - kPieceCost) / s.tile_cost});
      add(block, s, tile, count);
      tile += count;
      room -= kPieceCost + count * s.tile_cost;
    }
  }
  return block + 1;
}

// The least capacity, to some percent of a piece, at which `blocks` blocks suffice, of those from
// `least` to `most`; `most` where none is found.
int64_t LeastCapacity(const std::vector<Segment>& segments, int64_t blocks, int64_t least,
                      int64_t most) {
  const auto suffices = [&](int64_t capacity) {
    return Fill(segments, capacity, [](int64_t, const Segment&, int64_t, int64_t) {}) <= blocks;
  };
  if (least >= most || suffices(least)) return least;
  while (most - least > kPieceCost / 32) {
    const int64_t middle = least + (most - least) / 2;
    (suffices(middle) ? most : least) = middle;
  }
  return most;
}

}  // namespace

// By equal bytes, or so that the dearest block costs least, where that is less: blocks with several
// pieces then have fewer tiles, and pieces end where segments do.
int64_t DealSegments(const std::vector<Segment>& segments, DecodePlan& plan) {
  int64_t total = 0, tiles = 0, largest = 0;
  for (const Segment& s : segments) {
    total += s.Tiles() * s.tile_cost;
    tiles += s.Tiles();
    largest = std::max(largest, s.tile_cost);
  }
  Dealer even(plan);
  DealEvenly(segments, total, std::clamp<int64_t>(tiles, 1, plan.blocks), even);
  const int64_t dearest = even.Finish();
  const int64_t capacity = LeastCapacity(
      segments, plan.blocks, std::max(total / plan.blocks, largest) + kPieceCost, dearest);
  if (capacity >= dearest) return dearest;
  DecodePlan filled;
  filled.blocks = plan.blocks;
  Dealer dealer(filled);
  Fill(segments, capacity, [&](int64_t block, const Segment& s, int64_t first, int64_t count) {
    dealer.Add(block, s, first, count);
  });
  const int64_t least_dear = dealer.Finish();
  if (filled.partials() > MaxPieces(plan.requests, plan.head_blocks, plan.blocks)) return dearest;
  plan.block_begin = std::move(filled.block_begin);
  plan.pieces = std::move(filled.pieces);
  return least_dear;
}

}  // namespace oscar
