// The CPU twin of decode attention against float64 on the exactly reconstructed cache.
#include <gtest/gtest.h>

#include <string>

#include "gpu/decode_case.h"
#include "oscar/core/error.h"

namespace oscar::test {
namespace {

DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim = 128, int64_t groups = 1,
                  DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, groups, scale};
  shape.q_heads = q_heads;
  return shape;
}

DecodeResult Twin(DecodeCase& c, int64_t blocks) {
  DecodeResult result;
  result.o.resize(static_cast<size_t>(c.outputs()));
  result.lse.resize(static_cast<size_t>(c.rows()));
  DecodeTwin(c.shape, PlanDecode(c.shape, c.lengths, blocks), c.HostInputs(),
             {result.o.data(), DType::kF32, result.lse.data()});
  return result;
}

TEST(DecodeTwin, MeetsThePromisedAccuracy) {
  for (const DecodeShape& shape :
       {Shape(8, 2), Shape(16, 1), Shape(4, 4, 64), Shape(6, 2, 256), Shape(8, 2, 128, 4),
        Shape(8, 2, 128, 2, DType::kBF16), Shape(8, 2, 64, 1, DType::kF16)}) {
    DecodeCase c(shape, {{300, 20}, {0, 0}, {1, 0}, {0, 5}, {65, 0}}, 7);
    const Distance distance = Compare(Twin(c, 9), Reference(c));
    // Half-precision weights: 2^-11 of each code, of which o is a mean.
    EXPECT_LE(distance.output, 1e-3);
    EXPECT_LE(distance.lse, 1e-5);
  }
}

TEST(DecodeTwin, SplitsDoNotMatter) {
  DecodeCase c(Shape(8, 2), {{500, 40}, {33, 0}}, 8);
  const DecodeResult one = Twin(c, 1);
  for (const int64_t blocks : {2, 5, 264}) {
    const Distance distance = Compare(Twin(c, blocks), one);
    EXPECT_LE(distance.output, 3e-4);
    EXPECT_LE(distance.lse, 1e-6);
  }
}

TEST(DecodeTwin, EmptyRequestsGiveZeroAndMinusInfinity) {
  DecodeCase c(Shape(8, 2), {{0, 0}, {10, 0}}, 9);
  for (const DecodeResult& result : {Twin(c, 3), Reference(c)}) {
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(result.lse[i], -std::numeric_limits<float>::infinity());
    for (size_t i = 0; i < 8 * 128; ++i) EXPECT_EQ(result.o[i], 0.0F);
    EXPECT_TRUE(std::isfinite(result.lse[8]));
  }
}

TEST(DecodeReference, EqualsOneTokensValue) {
  DecodeCase c(Shape(2, 1), {{1, 0}}, 10);
  const DecodeResult result = Reference(c);
  const int64_t slot = c.quantised_slots[0];
  for (int64_t d = 0; d < 128; ++d) {
    const int code = (c.Codes(true, slot, 0)[d % 32] >> (2 * (d / 32))) & 3;
    const float* scale = c.Scale(true, slot, 0);
    EXPECT_FLOAT_EQ(result.o[static_cast<size_t>(d)],
                    (static_cast<float>(code) - scale[1]) * scale[0]);
  }
}

TEST(DecodeReference, RotatesBack) {
  // R = a permutation: x' = x R moves channel d to (d + 1) mod D, so o R^T moves it back.
  DecodeCase c(Shape(2, 1, 64), {{20, 3}}, 11);
  const DecodeResult plain = Reference(c);
  c.v_rotation.assign(64 * 64, BFloat16{0});
  for (size_t d = 0; d < 64; ++d) c.v_rotation[d * 64 + (d + 1) % 64] = ToBFloat16(1.0F);
  const DecodeResult rotated = Reference(c);
  for (size_t d = 0; d < 64; ++d) EXPECT_EQ(rotated.o[d], plain.o[(d + 1) % 64]);
}

}  // namespace
}  // namespace oscar::test
