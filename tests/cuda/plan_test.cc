#include "oscar/cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/cuda/device.h"

namespace oscar {
namespace {

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim = 128) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, 1, DType::kF32};
  shape.q_heads = q_heads;
  return shape;
}

// Every token of every request and head block is in exactly one piece, partials are contiguous and
// blocks hold consecutive pieces.
void ExpectCovers(const DecodeShape& shape, const std::vector<RequestLengths>& lengths,
                  const DecodePlan& plan) {
  ASSERT_EQ(static_cast<int64_t>(plan.block_begin.size()), plan.blocks + 1);
  EXPECT_EQ(plan.block_begin.front(), 0);
  EXPECT_EQ(plan.block_begin.back(), plan.partials());
  for (size_t b = 0; b + 1 < plan.block_begin.size(); ++b) {
    EXPECT_LE(plan.block_begin[b], plan.block_begin[b + 1]);
  }
  const int64_t head_blocks = plan.head_blocks;
  const int64_t heads = shape.cache.heads / head_blocks;
  ASSERT_TRUE(heads == MostHeadsPerBlock(shape) || heads == LeastHeadsPerBlock(shape));
  ASSERT_EQ(heads * head_blocks, shape.cache.heads);
  // No piece is longer than its sums may be, but where a block's share is too long to be cut so.
  const int64_t tile = TileTokens(shape, heads, Tier::kQuantised);
  int64_t tiles = 0;
  for (const RequestLengths& r : lengths) tiles += (r.quantised + tile - 1) / tile * head_blocks;
  const int64_t shares = kMaxCuts * plan.blocks;
  const int64_t most[2] = {tile * std::max(kMaxQuantisedTiles, (tiles + shares - 1) / shares),
                           std::max(kMaxRowTokens, TileTokens(shape, heads, Tier::kRows))};
  int64_t begin[2] = {0, 0};
  for (size_t r = 0; r < lengths.size(); ++r) {
    const int64_t tokens[2] = {lengths[r].quantised, lengths[r].rows};
    for (int64_t h = 0; h < head_blocks; ++h) {
      const size_t at = r * static_cast<size_t>(head_blocks) + static_cast<size_t>(h);
      int64_t next[2] = {begin[0], begin[1]};
      for (int32_t i = plan.partial_begin[at]; i < plan.partial_begin[at + 1]; ++i) {
        const PlanPiece& piece = plan.pieces[static_cast<size_t>(i)];
        EXPECT_EQ(piece.partial, i);
        EXPECT_EQ(piece.request, static_cast<int32_t>(r));
        EXPECT_EQ(piece.head_block, static_cast<int32_t>(h));
        if (tokens[0] + tokens[1] == 0) {
          EXPECT_EQ(piece.tokens, 0);  // the one piece that stands for no tokens
          EXPECT_EQ(plan.partial_begin[at + 1], i + 1);
          continue;
        }
        EXPECT_GE(piece.tokens, 1);
        EXPECT_LE(piece.tokens, most[static_cast<size_t>(piece.tier)]);
        const auto tier = static_cast<size_t>(piece.tier);
        EXPECT_EQ(piece.slot_begin, next[tier]);
        next[tier] += piece.tokens;
      }
      EXPECT_GT(plan.partial_begin[at + 1], plan.partial_begin[at]);
      EXPECT_EQ(next[0], begin[0] + tokens[0]);
      EXPECT_EQ(next[1], begin[1] + tokens[1]);
    }
    begin[0] += tokens[0];
    begin[1] += tokens[1];
  }
}

TEST(Plan, CoversEveryTokenOnce) {
  for (const DecodeShape& shape :
       {Shape(32, 8), Shape(28, 4), Shape(8, 1), Shape(96, 8), Shape(6, 3, 256)}) {
    for (const int64_t blocks : {1, 3, 132, 264}) {
      Random random(static_cast<uint64_t>(blocks));
      std::vector<RequestLengths> lengths = {{0, 0},  {1, 0},    {0, 1},
                                             {64, 0}, {65, 320}, {200000, 0}};
      for (int i = 0; i < 40; ++i) {
        lengths.push_back(
            {static_cast<int64_t>(random.Below(5000)), static_cast<int64_t>(random.Below(400))});
      }
      for (const int64_t heads :
           {int64_t{0}, MostHeadsPerBlock(shape), LeastHeadsPerBlock(shape)}) {
        const DecodePlan plan = PlanDecode(shape, lengths, blocks, heads);
        EXPECT_TRUE(heads == 0 || plan.head_blocks == shape.cache.heads / heads);
        ExpectCovers(shape, lengths, plan);
        EXPECT_LE(plan.partials(),
                  MaxPieces(static_cast<int64_t>(lengths.size()), plan.head_blocks, blocks));
      }
    }
  }
}

// From piece to piece as the kernels go, every block meets its pieces, in order.
TEST(Plan, BlocksFindTheirPieces) {
  std::vector<RequestLengths> lengths = {{0, 0}, {200000, 320}, {1, 0}, {0, 7}};
  for (int64_t i = 0; i < 30; ++i) lengths.push_back({i * 37, i % 5});
  for (const int64_t blocks : {1, 7, 132, 400}) {
    for (const std::vector<RequestLengths>& batch :
         {lengths, std::vector<RequestLengths>{}, std::vector<RequestLengths>{{64, 0}}}) {
      const DecodePlan plan = PlanDecode(Shape(32, 8), batch, blocks);
      const std::vector<PlanPiece> pieces = PiecesForDevice(plan);
      ASSERT_EQ(static_cast<int64_t>(pieces.size()), blocks + plan.partials());
      for (int64_t b = 0; b < blocks; ++b) {
        auto at = static_cast<size_t>(b);
        int32_t expected = plan.block_begin[at];
        for (int32_t following = pieces[at].following; following >= 0; --following) {
          ASSERT_LT(expected, plan.block_begin[static_cast<size_t>(b) + 1]);
          EXPECT_EQ(pieces[at].partial, expected++);
          EXPECT_EQ(pieces[at].following, following);
          at = static_cast<size_t>(blocks + pieces[at].partial + 1);
        }
        EXPECT_EQ(expected, plan.block_begin[static_cast<size_t>(b) + 1]);
      }
    }
  }
}

TEST(Plan, WhatIsNoPlanIsRefused) {
  const DecodeShape shape = Shape(96, 24);  // eight or four heads per block
  const DecodePlan good = PlanDecode(shape, {{{5000, 20}, {0, 0}}}, 20);
  EXPECT_NO_THROW(CheckPlan(good, shape));
  EXPECT_NO_THROW(CheckPlan(PlanDecode(shape, {}, 20), shape));
  const auto refused = [&](const char* what, auto change) {
    DecodePlan plan = good;
    change(plan);
    try {
      CheckPlan(plan, shape);
      ADD_FAILURE() << what;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  refused("5 blocks of heads for 24", [](DecodePlan& plan) { plan.head_blocks = 5; });
  refused("0 blocks of heads", [](DecodePlan& plan) { plan.head_blocks = 0; });
  refused("12 blocks of heads", [](DecodePlan& plan) { plan.head_blocks = 12; });
  refused("its blocks", [](DecodePlan& plan) { plan.blocks = 132; });
  refused("its blocks", [](DecodePlan& plan) {
    plan.blocks = -1;
    std::vector<int32_t>().swap(plan.block_begin);
  });
  refused("its blocks", [](DecodePlan& plan) { ++plan.block_begin.back(); });
  refused("its blocks", [](DecodePlan& plan) { plan.block_begin[1] = 1000; });
  refused("its requests", [](DecodePlan& plan) { plan.partial_begin.pop_back(); });
  refused("its requests", [](DecodePlan& plan) { plan.requests = 3; });
  refused("piece 1 is out of place", [](DecodePlan& plan) { plan.pieces[1].partial = 2; });
  refused("piece 2 is out of place", [](DecodePlan& plan) { plan.pieces[2].request = 2; });
  refused("piece 0 is out of place", [](DecodePlan& plan) { plan.pieces[0].head_block = -1; });
}

TEST(Plan, EmptyBatches) {
  for (const std::vector<RequestLengths>& lengths :
       {std::vector<RequestLengths>{}, std::vector<RequestLengths>{{0, 0}, {0, 0}}}) {
    const DecodePlan plan = PlanDecode(Shape(32, 8), lengths, 132);
    EXPECT_EQ(plan.partials(), static_cast<int64_t>(lengths.size()) * plan.head_blocks);
    ExpectCovers(Shape(32, 8), lengths, plan);
  }
}

// What each block costs as the planner counts it.
std::vector<int64_t> BlockCosts(const DecodeShape& shape, const DecodePlan& plan) {
  const int64_t heads = shape.cache.heads / plan.head_blocks;
  std::vector<int64_t> cost(static_cast<size_t>(plan.blocks));
  for (size_t b = 0; b < cost.size(); ++b) {
    for (int32_t i = plan.block_begin[b]; i < plan.block_begin[b + 1]; ++i) {
      const PlanPiece& piece = plan.pieces[static_cast<size_t>(i)];
      const int64_t tile = TileTokens(shape, heads, piece.tier);
      const int64_t tokens = (piece.tokens + tile - 1) / tile * tile;
      if (tokens > 0) cost[b] += kPieceCost;
      cost[b] +=
          tokens *
          (piece.tier == Tier::kQuantised ? shape.cache.QuantisedTokenBytes()
                                          : shape.cache.RowTokenBytes() * kRowCostPercent / 100) /
          plan.head_blocks;
    }
  }
  return cost;
}

TEST(Plan, NoBlockHasMuchMoreThanItsShare) {
  // The cost of the dearest block is above the mean by at most one tile of either tier and one
  // piece.
  const DecodeShape shape = Shape(32, 8);
  Random random(3);
  std::vector<RequestLengths> lengths;
  for (int i = 0; i < 64; ++i) lengths.push_back({static_cast<int64_t>(random.Below(100000)), 320});
  const int64_t blocks = 132;
  const DecodePlan plan = PlanDecode(shape, lengths, blocks);
  const std::vector<int64_t> cost = BlockCosts(shape, plan);
  const int64_t total = std::accumulate(cost.begin(), cost.end(), int64_t{0});
  const int64_t largest_tile = TileTokens(shape, MostHeadsPerBlock(shape), Tier::kRows) *
                               shape.cache.RowTokenBytes() * kRowCostPercent / 100;
  EXPECT_LE(*std::max_element(cost.begin(), cost.end()),
            total / blocks + largest_tile + kPieceCost);
}

// Where requests and blocks do not match, some blocks have two pieces and read less for it.
TEST(Plan, PiecesCountBesideTheirTokens) {
  const DecodeShape shape = Shape(32, 8);
  const std::vector<RequestLengths> lengths(35, {15000, 0});
  const DecodePlan plan = PlanDecode(shape, lengths, 132);
  ExpectCovers(shape, lengths, plan);
  int64_t tokens[3] = {}, blocks[3] = {};
  for (size_t b = 0; b + 1 < plan.block_begin.size(); ++b) {
    const int32_t count = plan.block_begin[b + 1] - plan.block_begin[b];
    ASSERT_TRUE(count == 1 || count == 2) << b;
    ++blocks[count];
    for (int32_t i = plan.block_begin[b]; i < plan.block_begin[b + 1]; ++i) {
      tokens[count] += plan.pieces[static_cast<size_t>(i)].tokens;
    }
  }
  ASSERT_GT(blocks[1], 0);
  ASSERT_GT(blocks[2], 0);
  const double saved = static_cast<double>(tokens[1]) / static_cast<double>(blocks[1]) -
                       static_cast<double>(tokens[2]) / static_cast<double>(blocks[2]);
  const auto bytes = static_cast<double>(shape.cache.QuantisedTokenBytes());
  EXPECT_NEAR(saved, static_cast<double>(kPieceCost) / bytes,
              static_cast<double>(TileTokens(shape, 8, Tier::kQuantised)));
}

// Row windows are short, but BF16 caches are rows: however long they are, their pieces fit the
// buffers of a workspace.
TEST(Plan, PiecesOfLongRowsFitTheCapacity) {
  constexpr int64_t kMillion = int64_t{1} << 20;
  for (const auto& [requests, heads, rows] :
       {std::tuple<size_t, int64_t, int64_t>{1024, 8, kMillion / 4},
        {1, 1, 100 * kMillion},
        {128, 8, kMillion},
        {256, 8, kMillion},
        {256, 1, 2 * kMillion}}) {
    const DecodeShape shape = Shape(4 * heads, heads);
    const std::vector<RequestLengths> lengths(requests, {0, rows});
    const DecodePlan plan = PlanDecode(shape, lengths, 132);
    EXPECT_LE(plan.partials(),
              MaxPieces(static_cast<int64_t>(requests), plan.head_blocks, plan.blocks))
        << requests << " " << heads << " " << rows;
    EXPECT_NO_THROW(CheckPlan(plan, shape));
  }
}

// The cost of the dearest block.
int64_t Dearest(const DecodeShape& shape, const std::vector<RequestLengths>& lengths) {
  const DecodePlan plan = PlanDecode(shape, lengths, 132, MostHeadsPerBlock(shape));
  ExpectCovers(shape, lengths, plan);
  EXPECT_LE(plan.partials(),
            MaxPieces(static_cast<int64_t>(lengths.size()), plan.head_blocks, plan.blocks));
  const std::vector<int64_t> cost = BlockCosts(shape, plan);
  return *std::max_element(cost.begin(), cost.end());
}

// Counting pieces never makes the dearest block dearer than shares of equal bytes would: the number
// of requests fits the blocks or does not, pieces are short or cut for their length, requests are
// empty.
TEST(Plan, NoBlockIsDearerThanWithEqualBytes) {
  struct Batch {
    int64_t heads;
    size_t requests;
    int64_t tokens, most;  // KiB of the dearest block at equal bytes
  };
  for (const Batch& b : {Batch{1, 66, 1024, 140}, Batch{1, 33, 1024, 140}, Batch{1, 33, 4096, 180},
                         Batch{1, 12, 32768, 340}, Batch{8, 12, 4096, 340}, Batch{8, 33, 1024, 260},
                         Batch{8, 66, 1024, 420}, Batch{8, 33, 4096, 740}}) {
    const std::vector<RequestLengths> lengths(b.requests, {b.tokens, 0});
    EXPECT_LE(Dearest(Shape(4 * b.heads, b.heads), lengths), b.most * 1024)
        << b.heads << " x " << b.requests << " x " << b.tokens;
  }
  for (const auto& [requests, tokens] :
       {std::pair<size_t, int64_t>{128, 131072}, {64, 262144}, {16, 1048576}, {32, 1048576}}) {
    const DecodeShape shape = Shape(4, 1);
    const std::vector<RequestLengths> lengths(requests, {tokens, 320});
    const auto bytes = static_cast<double>(requests) *
                       static_cast<double>(tokens * shape.cache.QuantisedTokenBytes() +
                                           320 * shape.cache.RowTokenBytes());
    EXPECT_LE(static_cast<double>(Dearest(shape, lengths)), 1.1 * bytes / 132)
        << requests << " x " << tokens;
  }
  // Requests without tokens take nothing from the others.
  std::vector<RequestLengths> lengths(256);
  lengths.push_back({32768, 0});
  EXPECT_EQ(Dearest(Shape(32, 8), lengths), Dearest(Shape(32, 8), {{32768, 0}}));
}

// Where pieces of equal length fill the blocks but for a few, no block has the end of one request
// and the beginning of another.
TEST(Plan, RequestsThatFitTheBlocksAreNotCutAcross) {
  for (const auto& [requests, tokens] : {std::pair<size_t, int64_t>{8, 4096},
                                         {8, 8192},
                                         {32, 1024},
                                         {32, 4096},
                                         {64, 1024},
                                         {128, 1024}}) {
    const std::vector<RequestLengths> lengths(requests, {tokens, 0});
    const DecodePlan plan = PlanDecode(Shape(32, 8), lengths, 132, 8);
    EXPECT_EQ(plan.partials(), 128) << requests << " x " << tokens;
    for (size_t b = 0; b < 132; ++b) {
      EXPECT_LE(plan.block_begin[b + 1] - plan.block_begin[b], 1) << requests << " x " << tokens;
    }
  }
}

TEST(Plan, ShortContextsHalveTheHeadsOfABlock) {
  const auto heads = [](const DecodeShape& shape, const RequestLengths& lengths) {
    return shape.cache.heads / PlanDecode(shape, {{lengths}}, 132).head_blocks;
  };
  EXPECT_EQ(heads(Shape(32, 8), {8192, 0}), 4);
  EXPECT_EQ(heads(Shape(64, 8, 64), {8192, 320}), 4);
  EXPECT_EQ(heads(Shape(32, 8), {102400, 0}), 4);
  EXPECT_EQ(heads(Shape(32, 8), {196608, 0}), 8);
  EXPECT_EQ(heads(Shape(32, 8), {1048576, 0}), 8);
  // Twice the pieces would make the dearest block dearer.
  const std::vector<RequestLengths> many(128, {1024, 0});
  EXPECT_EQ(PlanDecode(Shape(32, 8), many, 132).head_blocks, 1);
  const DecodePlan halved = PlanDecode(Shape(32, 8), {{{8192, 0}}}, 132);
  EXPECT_EQ(HeadOf(halved, Shape(32, 8)).heads_log2, 2);
  EXPECT_EQ(HeadOf(halved, Shape(32, 8)).requests, 1);
  // Kernels that take four heads, or fewer, have no instances for half of them.
  EXPECT_EQ(heads(Shape(128, 8), {8192, 0}), 4);
  EXPECT_EQ(heads(Shape(16, 4), {8192, 0}), 4);
  EXPECT_EQ(heads(Shape(8, 2), {8192, 0}), 2);
  EXPECT_EQ(LeastHeadsPerBlock(Shape(32, 8)), 4);
  EXPECT_EQ(LeastHeadsPerBlock(Shape(128, 8)), 4);
  EXPECT_EQ(LeastHeadsPerBlock(Shape(16, 4)), 4);
}

TEST(Plan, EqualInputEqualPlan) {
  const std::vector<RequestLengths> lengths = {{5000, 320}, {77, 0}};
  const DecodePlan a = PlanDecode(Shape(32, 8), lengths, 132),
                   b = PlanDecode(Shape(32, 8), lengths, 132);
  EXPECT_EQ(a.block_begin, b.block_begin);
  ASSERT_EQ(a.partials(), b.partials());
  for (size_t i = 0; i < a.pieces.size(); ++i)
    EXPECT_EQ(a.pieces[i].slot_begin, b.pieces[i].slot_begin);
}

TEST(Plan, UnsupportedShapesAreRefusedByName) {
  const auto message = [](const DecodeShape& shape) -> std::string {
    try {
      CheckDecodeShape(shape);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(message(Shape(32, 8, 96)).find("head size 96"), std::string::npos);
  EXPECT_NE(message(Shape(33, 8)).find("33 query heads"), std::string::npos);
  EXPECT_NE(message(Shape(9, 2)).find("9 query heads"), std::string::npos);
  EXPECT_NE(message(Shape(17, 1)).find("17 query heads"), std::string::npos);
  EXPECT_NE(message(Shape(32 * 17, 32)).find("17 query heads per KV head"), std::string::npos);
  DecodeShape groups = Shape(32, 8);
  groups.cache.groups = 8;
  EXPECT_NE(message(groups).find("8 groups"), std::string::npos);
  groups = Shape(32, 8, 256);
  groups.cache.groups = 8;
  EXPECT_NE(message(groups).find("8 groups"), std::string::npos);
  DecodeShape type = Shape(32, 8);
  type.cache.scale_type = DType::kI8;
  EXPECT_NE(message(type).find("i8"), std::string::npos);
  type.cache.scale_type = DType::kI32;
  EXPECT_NE(message(type).find("i32"), std::string::npos);
  EXPECT_THROW(PlanDecode(Shape(32, 8), std::vector<RequestLengths>{{-1, 0}}, 4), Error);
  EXPECT_EQ(message(Shape(32, 8)), "");
  EXPECT_EQ(message(Shape(8, 2)), "");
}

TEST(Device, WithoutOneEveryCallSaysSo) {
  if (DeviceCount() > 0) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_THROW(UseDevice(0), Error);
  EXPECT_THROW(CurrentDevice(), Error);
  try {
    UseDevice(0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kDevice);
    EXPECT_NE(std::string(error.what()).find("no CUDA device"), std::string::npos);
  }
}

}  // namespace
}  // namespace oscar
