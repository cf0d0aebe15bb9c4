#include "oscar/weights/tensor_type.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "oscar/core/dtype.h"

namespace oscar {
namespace {

// Every 16-bit pattern, at an odd address as in files whose header is not padded.
std::vector<float> AllPatterns(TensorType type) {
  std::vector<uint8_t> bytes(1 + 2 * 65536);
  for (uint32_t i = 0; i < 65536; ++i) {
    bytes[1 + 2 * i] = static_cast<uint8_t>(i);
    bytes[2 + 2 * i] = static_cast<uint8_t>(i >> 8);
  }
  std::vector<float> out(65536);
  Dequantise(type, bytes.data() + 1, 65536, out.data());
  return out;
}

TEST(TensorType, EveryBFloat16IsExact) {
  const std::vector<float> values = AllPatterns(TensorType::kBF16);
  for (uint32_t i = 0; i < 65536; ++i) {
    EXPECT_EQ(std::bit_cast<uint32_t>(values[i]), i << 16);
  }
}

// The value of a binary16 from its definition: (-1)^s 2^(e-15) 1.m, subnormals 2^-14 0.m.
TEST(TensorType, EveryFloat16IsExact) {
  const std::vector<float> values = AllPatterns(TensorType::kF16);
  for (uint32_t i = 0; i < 65536; ++i) {
    const uint32_t exponent = (i >> 10) & 31;
    const uint32_t mantissa = i & 1023;
    const double sign = (i & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31 && mantissa != 0) {
      EXPECT_TRUE(std::isnan(values[i])) << i;
      continue;
    }
    double expected = exponent == 0 ? std::ldexp(mantissa, -24)
                                    : std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25);
    if (exponent == 31) expected = std::numeric_limits<double>::infinity();
    EXPECT_EQ(static_cast<double>(values[i]), sign * expected) << i;
    EXPECT_EQ(std::signbit(values[i]), sign < 0) << i;
  }
}

// Any count works, so that tails after the vector loop are right too.
TEST(TensorType, TailsOfEveryLength) {
  for (int64_t count = 0; count < 70; ++count) {
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < count; ++i) {
      const Float16 half = ToFloat16(static_cast<float>(i) + 0.5F);
      bytes.push_back(static_cast<uint8_t>(half.bits));
      bytes.push_back(static_cast<uint8_t>(half.bits >> 8));
    }
    std::vector<float> out(static_cast<size_t>(count) + 1, -1.0F);
    Dequantise(TensorType::kF16, bytes.data(), count, out.data());
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(out[static_cast<size_t>(i)], static_cast<float>(i) + 0.5F);
    }
    EXPECT_EQ(out.back(), -1.0F) << "wrote past the end at count " << count;
  }
}

TEST(TensorType, FindsTheFirstNonFiniteValue) {
  std::vector<float> values(1000, 3e38F);
  EXPECT_EQ(FirstNonFinite(values.data(), 1000), -1);
  EXPECT_EQ(FirstNonFinite(values.data(), 0), -1);
  for (const size_t at : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, size_t{998}, size_t{999}}) {
    for (const float bad : {std::nanf(""), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> copy = values;
      copy[at] = bad;
      copy[999] = bad;
      EXPECT_EQ(FirstNonFinite(copy.data(), 1000), static_cast<int64_t>(at));
    }
  }
}

}  // namespace
}  // namespace oscar
