// The CPU twin of decode attention at every number of query heads per KV head, on hard rows at
// shapes of every kind, and in the longest pieces.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/decode_by_twin.h"
#include "gpu/decode_hard_cases.h"
#include "gpu/decode_nan_case.h"
#include "gpu/decode_plans.h"
#include "gpu/decode_shape_cases.h"

namespace oscar::test {
namespace {

// The promise of decode.h.
void ExpectClose(DecodeCase& c, int64_t blocks, const std::string& what) {
  const CacheShape& cache = c.shape.cache;
  SCOPED_TRACE(std::to_string(c.shape.q_heads) + "x" + std::to_string(cache.heads) + "x" +
               std::to_string(cache.dim) + "g" + std::to_string(cache.groups) + " " + what);
  const Distance distance = Compare(Twin(c, blocks), Reference(c));
  EXPECT_LE(distance.output, 1e-3);
  EXPECT_LE(distance.lse, 1e-4);
}

void ExpectHardCasesClose(const std::vector<DecodeShape>& shapes) {
  for (const DecodeShape& shape : shapes) {
    for (NamedDecodeCase& hard : HardDecodeCases(shape, 200)) ExpectClose(hard.c, 9, hard.name);
  }
}

TEST(DecodeTwin, HardRowsInGroups) { ExpectHardCasesClose(HardShapesInGroups()); }

TEST(DecodeTwin, HardRowsOfManyQueries) { ExpectHardCasesClose(HardShapesOfManyQueries()); }

TEST(DecodeTwin, HardRowsInBFloat16) { ExpectHardCasesClose(HardShapesWithScalesOf(DType::kBF16)); }

// In half precision the zeros of constant rows are infinite.
TEST(DecodeTwin, HardRowsInFloat16) { ExpectHardCasesClose(HardShapesWithScalesOf(DType::kF16)); }

TEST(DecodeTwin, EveryGroupSize) {
  for (const int64_t groups : {1, 4}) {
    for (const DecodeShape& shape : EveryGroupSize(2, groups)) {
      DecodeCase c(shape, {{130, 9}, {0, 0}, {65, 0}, {0, 19}}, 26);
      ExpectClose(c, 9, "every group size");
    }
  }
}

// The largest of all numbers, with keys so small that scores are none of the largest.
TEST(DecodeTwin, TheLargestQueries) {
  DecodeCase c(ShapeOf(4, 2, 128, 1, DType::kF32), {{90, 0}}, 33);
  for (size_t i = 0; i < c.k_scales.size(); i += 2) {
    c.k_scales[i] = 1e-37F;
    c.k_scales[i + 1] = 1;
  }
  c.StoreScales();
  // Channel 40 is field 1 of byte 8; codes above 1 would leave the range of float32.
  for (size_t i = 8; i < c.k_codes.size(); i += 32) c.k_codes[i] &= 0xf7;
  for (size_t i = 0; i < c.q.size(); ++i) {
    c.q[i] = ToBFloat16(i % 128 == 40 ? 0x1.fep127F : 0.0F);
  }
  ExpectClose(c, 9, "the largest queries");
}

TEST(DecodeTwin, NaNStaysAlone) {
  for (const DecodeShape& shape :
       {ShapeOf(4, 2, 128, 1, DType::kF32), ShapeOf(8, 2, 64, 4, DType::kF32)}) {
    ExpectNaNStaysAlone(shape, 1, [](DecodeCase& c) { return Twin(c, 9); });
    ExpectNaNStaysAlone(shape, 1, [](DecodeCase& c) { return Reference(c); });
  }
}

TEST(DecodeTwin, ResultsOfOneHeadAreThoseOfAll) {
  DecodeCase c(ShapeOf(3, 4, 64, 2, DType::kF16), {{90, 9}, {0, 0}, {33, 0}, {0, 5}}, 27);
  const DecodeResult all = Reference(c);
  const std::vector<DecodeResult> some = ReferencesOf(c, {0, 2});
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const DecodeResult expected = OneHead(c, all, static_cast<int64_t>(2 * i));
    EXPECT_EQ(some[i].o, expected.o);
    EXPECT_EQ(some[i].lse, expected.lse);
  }
}

// Float32 sums of T like terms in order are off by 0.42 2^-24 (T / 3)^1/2 of their size in the root
// mean square: every addition is rounded by 0.42 2^-24 of the sum so far (SplitsDoNotMatter derives
// the 0.42 of a rounding). With 65536 terms that is 3.7e-6.
TEST(DecodeTwin, PiecesOfTheMostTokens) {
  DecodeCase c(ShapeOf(1, 4, 128), {{65536, 0}}, 29);
  MakeValuesPositive(c);
  const DecodePlan plan = JoinPieces(PlanDecode(c.shape, c.lengths, 1));
  CheckPlan(plan, c.shape);
  ASSERT_EQ(plan.partials(), 1);
  // Three such sums, of p, p s code and p s zero, 6.4e-6, and three times that for chance; rounded
  // weights add 2.1e-4 / T^1/2, less than 1e-6.
  const Distance distance = Compare(Twin(c, plan), Reference(c));
  EXPECT_LE(distance.output, 2e-5);
  EXPECT_LE(distance.lse, 2e-5);
  DecodeCase rows(ShapeOf(1, 4, 64), {{0, kMaxRowTokens}}, 30);
  ASSERT_EQ(PlanDecode(rows.shape, rows.lengths, 1).partials(), 1);
  ExpectClose(rows, 1, "rows");
}

// Values whose signs are random leave o at T^-1/2 of them, while the sums of codes and of zeros
// have T times their size: the errors above weigh (3 / 2)(4 / 3)^-1/2 T^1/2 as much, twice, 2.7e-8
// T of o in all. 8192 tokens keep to a fourth of the promise; one piece of 65536 does not keep it.
TEST(DecodeTwin, LongPiecesOfValuesThatCancel) {
  DecodeCase c(ShapeOf(1, 4, 128), {{8192, 0}}, 31);
  ASSERT_EQ(PlanDecode(c.shape, c.lengths, 1).partials(), 1);
  // With the 2.1e-4 of rounded weights.
  EXPECT_LE(Compare(Twin(c, 1), Reference(c)).output, 5e-4);
}

TEST(DecodeTwin, LongContextsOfEightHeads) {
  const DecodeCase c(ShapeOf(8, 4, 128), {{131072, 320}}, 28);
  for (const int64_t head : {0, 7}) {
    DecodeCase one = OneHead(c, head);
    ExpectClose(one, 132, "head " + std::to_string(head));
  }
}

}  // namespace
}  // namespace oscar::test
