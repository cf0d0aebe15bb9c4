// Decode attention on the device over long contexts and in long pieces, output and log-sum-exp.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/decode_plans.h"
#include "gpu/decode_shape_cases.h"
#include "gpu/expect_close.h"

namespace oscar::test {
namespace {

// The most rows of a piece, and as many 2-bit tokens.
constexpr int64_t kLongPiece = kMaxRowTokens;

// The promise, on some KV heads.
void ExpectHeadsClose(const DecodeCase& c, const std::vector<int64_t>& heads,
                      const std::vector<DecodeResult>& references, const DecodeResult& result) {
  for (size_t i = 0; i < heads.size(); ++i) {
    const Distance distance = Compare(OneHead(c, result, heads[i]), references[i]);
    EXPECT_LE(distance.output, kOutputBound) << "KV head " << heads[i];
    EXPECT_LE(distance.lse, kLseBound) << "KV head " << heads[i];
  }
}

int32_t LongestPiece(const DecodePlan& plan) {
  int32_t longest = 0;
  for (const PlanPiece& piece : plan.pieces) longest = std::max(longest, piece.tokens);
  return longest;
}

TEST(DecodeGpu, LongContexts) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(4, 1), {{32768, 320}, {131072, 0}}, 9);
  ExpectClose(c, "long");
  DecodeCase equal(Shape(1, 1), {{1 << 20, 0}}, 10);
  std::fill(equal.q.begin(), equal.q.end(), BFloat16{0});
  ExpectClose(equal, "million_equal");
}

TEST(DecodeGpu, LongContextsOfEightHeads) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(32, 8), {{131072, 320}, {20000, 0}}, 28);
  const std::vector<int64_t> heads = {0, 3, 7};
  const std::vector<DecodeResult> references = ReferencesOf(c, heads);
  DeviceDecode device(c);
  for (const int64_t per_block : {8, 4}) {
    SCOPED_TRACE(std::to_string(per_block) + " heads per block");
    ExpectHeadsClose(c, heads, references,
                     device.Run(PlanOn(device, c, device.workspace().blocks(), per_block)));
  }
}

// On one block, with the planner's pieces or with one piece of all tokens.
void ExpectCloseOnOneBlock(DecodeCase& c, bool join) {
  const DecodeShape& shape = c.shape;
  const std::vector<int64_t> heads = {0, shape.cache.heads - 1};
  const std::vector<DecodeResult> references = ReferencesOf(c, heads);
  DeviceDecode device(c);
  for (int64_t per_block = MostHeadsPerBlock(shape); per_block >= LeastHeadsPerBlock(shape);
       per_block /= 2) {
    SCOPED_TRACE(Name(shape) + ", " + std::to_string(per_block) + " heads per block");
    DecodePlan plan = PlanOn(device, c, 1, per_block);
    if (join) {
      plan = JoinPieces(plan);
      ASSERT_EQ(LongestPiece(plan), kLongPiece);
    }
    ExpectHeadsClose(c, heads, references, device.Run(plan));
  }
}

// Nothing cancels: what the multiply takes off the sums is as small a part of the output.
TEST(DecodeGpu, PiecesOfTheMostTokens) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : {Shape(32, 8), Shape(64, 8), Shape(8, 2), Shape(4, 1)}) {
    DecodeCase c(shape, {{kLongPiece, 0}}, 29);
    MakeValuesPositive(c);
    ExpectCloseOnOneBlock(c, true);
  }
}

// Values whose signs are random leave o at T^-1/2 of them, while the sums of codes and of zeros
// have T times their size: what the multiply takes off weighs T^1/2 as much, and the planner has to
// cut the pieces. So long a share has pieces of some more tiles than kMaxQuantisedTiles.
TEST(DecodeGpu, LongSharesOfValuesThatCancel) {
  OSCAR_NEED_DEVICE();
  // Sums are centred in their own way by head size, groups, and warps or columns of query heads.
  for (const DecodeShape& shape :
       {Shape(32, 8), Shape(64, 8), Shape(8, 2), Shape(4, 1), Shape(8, 2, 64), Shape(16, 4, 256),
        Shape(32, 8, 128, 2), Shape(8, 2, 64, 4), Shape(16, 1), Shape(16, 1, 256)}) {
    DecodeCase c(shape, {{kLongPiece, 0}}, 29);
    ExpectCloseOnOneBlock(c, false);
  }
}

TEST(DecodeGpu, PiecesOfTheMostRows) {
  OSCAR_NEED_DEVICE();
  DecodeCase c(Shape(8, 2), {{0, kLongPiece}}, 30);
  ExpectCloseOnOneBlock(c, true);
}

}  // namespace
}  // namespace oscar::test
