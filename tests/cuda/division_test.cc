// The division of the write kernel: with r = 1/s rounded, q = x r, and one correction, the quotient
// is the rounded x / s for every bf16 x. The arithmetic depends on mantissas only while nothing
// leaves the normal numbers, so all pairs of mantissas are a proof.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

#include "oscar/core/random.h"

namespace oscar {
namespace {

// GCC turns this into hardware instructions where there are any; fma() is exact either way.
__attribute__((target_clones("fma", "default"))) int64_t WrongQuotients(uint32_t first,
                                                                        uint32_t last) {
  int64_t wrong = 0;
  for (uint32_t mantissa = first; mantissa < last; ++mantissa) {
    const float s = std::bit_cast<float>(0x3f800000U | mantissa);
    const float r = 1.0F / s;
    int32_t differences = 0;
    for (uint32_t i = 0; i < 128; ++i) {
      const float x = std::bit_cast<float>(0x3f800000U | (i << 16));
      const float q = x * r;
      const float corrected = __builtin_fmaf(__builtin_fmaf(-q, s, x), r, q);
      differences += corrected != x / s ? 1 : 0;
    }
    wrong += differences;
  }
  return wrong;
}

TEST(WriteDivision, OneCorrectionIsExactForEveryMantissa) {
  EXPECT_EQ(WrongQuotients(0, 1U << 23), 0);
}

// The range of a row divided by 3: the product with the rounded 1/3 and one correction.
__attribute__((target_clones("fma", "default"))) int64_t WrongThirds() {
  constexpr float kThird = 1.0F / 3.0F;
  int64_t wrong = 0;
  // Two binades hold every mantissa on both sides of a power of 2 in the quotient.
  for (uint32_t bits = 0x3f800000U; bits < 0x40800000U; ++bits) {
    const float x = std::bit_cast<float>(bits);
    const float q = x * kThird;
    const float corrected = __builtin_fmaf(__builtin_fmaf(-3.0F, q, x), kThird, q);
    wrong += corrected != x / 3.0F ? 1 : 0;
  }
  return wrong;
}

TEST(WriteDivision, ThirdsAreExactForEveryMantissa) { EXPECT_EQ(WrongThirds(), 0); }

// The zero of a row, any float32 divided by any scale: two corrections. A sample; that it always
// holds is Markstein's theorem.
TEST(WriteDivision, TwoCorrectionsAreExactForAnyNumerator) {
  Random random(1);
  int64_t wrong = 0;
  for (int i = 0; i < 20000000; ++i) {
    const uint64_t bits = random.Next();
    const float x = std::bit_cast<float>(0x3f800000U | static_cast<uint32_t>(bits & 0x7fffffU));
    const float s =
        std::bit_cast<float>(0x3f800000U | static_cast<uint32_t>((bits >> 32) & 0x7fffffU));
    const float r = 1.0F / s;
    float q = x * r;
    q = std::fma(std::fma(-q, s, x), r, q);
    q = std::fma(std::fma(-q, s, x), r, q);
    wrong += q != x / s ? 1 : 0;
  }
  EXPECT_EQ(wrong, 0);
}

TEST(WriteDivision, WithoutTheCorrectionItIsNot) {
  int64_t wrong = 0;
  for (uint32_t mantissa = 1; mantissa < 4096; ++mantissa) {
    const float s = std::bit_cast<float>(0x3f800000U | (mantissa << 11));
    const float r = 1.0F / s;
    const float x = std::bit_cast<float>(0x3f800000U | ((mantissa % 128) << 16));
    wrong += x * r != x / s ? 1 : 0;
  }
  EXPECT_GT(wrong, 0);
}

}  // namespace
}  // namespace oscar
