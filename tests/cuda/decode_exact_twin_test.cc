// The CPU twin of decode attention where results are known to the bit, or nearly, and what the
// split of the tokens into pieces changes.
#include <gtest/gtest.h>

#include <vector>

#include "gpu/decode_by_twin.h"
#include "gpu/decode_exact_cases.h"
#include "gpu/decode_plans.h"

namespace oscar::test {
namespace {

TEST(DecodeTwin, EveryByteValueInEveryPosition) {
  for (const int64_t dim : {64, 128, 256}) {
    DecodeCase c = EveryByteCase(dim);
    const Distance distance = Compare(Twin(c, 9), Reference(c));
    EXPECT_LE(distance.output, 1e-3) << dim;
    EXPECT_LE(distance.lse, 1e-5) << dim;
  }
}

TEST(DecodeTwin, OneHotChannelsAreExact) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t group_size : {1, 8, 16}) {
      DecodeCase c = OneHotCase(dim, group_size);
      ExpectOneHotCodes(c, Twin(c, 9));
    }
  }
}

TEST(DecodeTwin, SplitsDoNotMatter) {
  DecodeShape shape;
  shape.cache = {2, 128, 1, DType::kF32};
  shape.q_heads = 8;
  DecodeCase c(shape, {{500, 40}, {480, 0}}, 8);
  const DecodePlan whole = PlanDecode(c.shape, c.lengths, 1);
  ASSERT_EQ(whole.partials(), 3);  // both tiers of a request, one of the other
  const DecodeResult one = Twin(c, whole);
  for (const int32_t tokens : {256, 64, 32, 7}) {
    const DecodePlan cut = CutPlan(whole, tokens);
    CheckPlan(cut, c.shape);
    ASSERT_GT(cut.partials(), 500 / tokens);
    const Distance distance = Compare(Twin(c, cut), one);
    EXPECT_LE(distance.output, kSplitBound) << tokens;
    EXPECT_LE(distance.lse, 1e-6) << tokens;
  }
}

TEST(DecodeTwin, SplitsOfExactWeightsDoNotMatter) {
  for (const int64_t dim : {64, 128, 256}) {
    DecodeCase c = ExactWeightsCase(dim, {{900, 0}, {40, 0}});
    ASSERT_EQ(c.logit_scale * 1.4426950408889634F, 1.0F);
    const DecodePlan whole = PlanDecode(c.shape, c.lengths, 1);
    ASSERT_EQ(whole.partials(), 2);
    const DecodeResult one = Twin(c, whole);
    for (const int32_t tokens : {256, 64, 7}) {
      const Distance distance = Compare(Twin(c, CutPlan(whole, tokens)), one);
      // A piece's log-sum-exp in base 2, below 16, is rounded by 2^-21 at most, its weight among
      // the pieces by ln 2 times that, which moves o by twice as much at most; its quotients and o
      // are rounded by 2^-24 each. Sums within a piece have 24 bits and no rounding.
      EXPECT_LE(distance.output, 0x1p-20) << dim << " " << tokens;
      EXPECT_LE(distance.lse, 1e-6) << dim << " " << tokens;
    }
  }
}

}  // namespace
}  // namespace oscar::test
