// The division of the write kernel: with r = 1/s rounded, q = x r, and one correction, the quotient
// is the rounded x / s for every bf16 x. The arithmetic depends on mantissas only while nothing
// leaves the normal numbers, so all pairs of mantissas are a proof.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>

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
