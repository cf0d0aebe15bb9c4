#include "oscar/quant/quantiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/quant/packing.h"

namespace oscar {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> NormalRow(Random& random, int64_t dim) {
  std::vector<float> row(static_cast<size_t>(dim));
  for (float& x : row) x = static_cast<float>(random.Normal());
  return row;
}

TEST(Clip, IndexAtTheEdges) {
  EXPECT_EQ(ClipIndex(0, 128), -1);
  EXPECT_EQ(ClipIndex(-1, 128), -1);
  EXPECT_EQ(ClipIndex(std::nan(""), 128), -1);
  EXPECT_EQ(ClipIndex(1e-9, 128), 0);
  EXPECT_EQ(ClipIndex(0.92, 128), 117);
  EXPECT_EQ(ClipIndex(0.96, 128), 122);
  EXPECT_EQ(ClipIndex(0.96, 256), 245);
  EXPECT_EQ(ClipIndex(0.92, 256), 235);
  EXPECT_EQ(ClipIndex(1, 128), 127);
  EXPECT_EQ(ClipIndex(7, 128), 127);
  EXPECT_EQ(ClipIndex(0.5, 1), 0);
}

TEST(Clip, OrderStatisticEqualsSorting) {
  Random random(11);
  for (const int64_t dim : {1, 2, 3, 63, 64, 65, 100, 128, 257}) {
    for (int trial = 0; trial < 40; ++trial) {
      std::vector<float> row = NormalRow(random, dim);
      if (trial % 4 == 1) {  // ties
        for (float& x : row) x = std::round(x);
      } else if (trial % 4 == 2) {  // huge, denormal and zero magnitudes together
        for (size_t i = 0; i < row.size(); ++i) row[i] *= i % 3 == 0 ? 1e38F : 1e-40F;
      } else if (trial % 4 == 3) {
        std::fill(row.begin(), row.end(), trial % 8 == 3 ? 0.0F : -2.5F);
      }
      std::vector<float> sorted = row;
      for (float& x : sorted) x = std::abs(x);
      std::sort(sorted.begin(), sorted.end());
      for (int64_t index = 0; index < dim; ++index) {
        ASSERT_EQ(OrderStatistic(row.data(), dim, index), sorted[static_cast<size_t>(index)])
            << dim << " " << index;
      }
    }
  }
}

TEST(Clip, BisectionBracketsTheOrderStatistic) {
  Random random(12);
  for (const int64_t dim : {64, 100, 128, 256}) {
    for (int trial = 0; trial < 50; ++trial) {
      const std::vector<float> row = NormalRow(random, dim);
      const int64_t index = ClipIndex(0.96, dim);
      const float found = BisectedThreshold(row.data(), dim, index);
      float largest = 0;
      for (const float x : row) largest = std::max(largest, std::abs(x));
      // At most dim - index magnitudes lie above it, and one step of the grid lower there are more.
      const float step = largest / std::exp2f(std::floor(std::log2f(static_cast<float>(dim))));
      const auto above = [&](float limit) {
        return std::count_if(row.begin(), row.end(), [&](float x) { return std::abs(x) > limit; });
      };
      EXPECT_LE(above(found), dim - index);
      EXPECT_GT(above(found - step * 1.001F), dim - index);
    }
  }
  // Short rows are sorted.
  const std::vector<float> row = {1, -4, 2, 3};
  EXPECT_EQ(BisectedThreshold(row.data(), 4, 2), 3);
}

// Straight from the formulas, with no shared code.
std::vector<float> NaiveReconstruction(std::vector<float> row, int64_t group, double clip) {
  const auto dim = static_cast<int64_t>(row.size());
  if (clip > 0) {
    std::vector<float> sorted = row;
    for (float& x : sorted) x = std::abs(x);
    std::sort(sorted.begin(), sorted.end());
    const auto index = std::min(static_cast<int64_t>(clip * static_cast<double>(dim)), dim - 1);
    const float tau = sorted[static_cast<size_t>(index)];
    for (float& x : row) x = std::clamp(x, -tau, tau);
  }
  for (int64_t start = 0; start < dim; start += group) {
    const auto begin = row.begin() + start;
    const auto [low, high] = std::minmax_element(begin, begin + group);
    const float min = *low;
    const float scale = std::max(*high - min, 1e-8F) / 3;
    const float zero = -min / scale;
    for (int64_t i = 0; i < group; ++i) {
      const volatile float quotient = begin[i] / scale;  // volatile: no fused arithmetic here
      const volatile float shifted = quotient + zero;
      const float code = std::trunc(shifted + 0.5F);
      const volatile float centred = code - zero;
      begin[i] = centred * scale;
    }
  }
  return row;
}

TEST(RowQuantiser, EqualsTheFormulasBitForBit) {
  Random random(13);
  for (const int64_t dim : {4, 64, 96, 100, 128, 256}) {
    for (const int64_t group : {dim, dim / 4}) {
      for (const double clip : {0.0, 0.7, 0.96, 1.0}) {
        QuantiserSpec spec;
        spec.group_size = group;
        spec.clip = clip;
        RowQuantiser quantiser(spec, dim);
        for (int trial = 0; trial < 20; ++trial) {
          const std::vector<float> row = NormalRow(random, dim);
          std::vector<float> found = row;
          quantiser.Reconstruct(found.data());
          EXPECT_EQ(found, NaiveReconstruction(row, group, clip)) << dim << " " << group;
        }
      }
    }
  }
}

TEST(RowQuantiser, EqualsStoringAndReadingBack) {
  Random random(14);
  const int64_t dim = 96;
  for (const ScaleType type : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
    for (const int64_t group : {0, 32}) {
      QuantiserSpec spec;
      spec.group_size = group;
      spec.clip = 0.92;
      spec.scale_type = type;
      std::vector<float> rows;
      for (int i = 0; i < 300; ++i) {
        const std::vector<float> row = NormalRow(random, dim);
        rows.insert(rows.end(), row.begin(), row.end());
      }
      std::vector<float> back(rows.size());
      Dequantise(Quantise({rows.data(), 300, dim}, spec, 2), {back.data(), 300, dim});
      RowQuantiser quantiser(spec, dim);
      for (int i = 0; i < 300; ++i) quantiser.Reconstruct(rows.data() + i * dim);
      EXPECT_EQ(rows, back);
    }
  }
}

// Rows that the kernels leave undefined, with every way to store the metadata.
TEST(RowQuantiser, DegenerateRowsGiveFiniteResultsAndNoBleeding) {
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  const std::vector<std::vector<float>> patterns = {{0, 0, 0, 0},
                                                    {1.5F, 1.5F, 1.5F, 1.5F},
                                                    {-30000, -30000, -30000, -30000},
                                                    {1e30F, 1e30F, 1e30F, 1e30F},
                                                    {kMax, -kMax, kMax, 0},
                                                    {kMax, kMax, kMax, kMax},
                                                    {kTiny, -kTiny, 0, kTiny},
                                                    {1000.00005F, 999.99995F, 1000, 1000},
                                                    {1e-8F, 0, 2e-9F, -1e-9F},
                                                    {-0.0F, 0.0F, -0.0F, 0.0F}};
  for (const std::vector<float>& pattern : patterns) {
    for (const ScaleType type : {ScaleType::kF32, ScaleType::kF16, ScaleType::kBF16}) {
      for (const Codebook codebook : {Codebook::kMinMax, Codebook::kLloydMax}) {
        for (const double clip : {0.0, 0.92, 1.0}) {
          std::vector<float> row;
          for (int i = 0; i < 64; ++i) row.push_back(pattern[static_cast<size_t>(i % 4)]);
          QuantiserSpec spec;
          spec.clip = clip;
          spec.scale_type = type;
          spec.codebook = codebook;
          RowQuantiser quantiser(spec, 64);
          std::vector<int32_t> codes(64);
          float scale = 0;
          float zero = 0;
          quantiser.Encode(row.data(), codes.data(), &scale, &zero);
          for (const int32_t code : codes) ASSERT_TRUE(code >= 0 && code <= 3) << code;
          quantiser.Reconstruct(row.data());
          for (const float x : row) ASSERT_TRUE(std::isfinite(x)) << pattern[0] << " " << x;
        }
      }
    }
  }
}

TEST(RowQuantiser, ConstantRowsComeBackInFloat32) {
  // zero = -c / s reaches 1e12 and loses its fraction: what comes back is within s |zero| 2^-23.
  for (const float c : {1.5F, -0.37F, 30000.0F, -1e-9F}) {
    std::vector<float> row(128, c);
    RowQuantiser quantiser(QuantiserSpec{}, 128);
    quantiser.Reconstruct(row.data());
    for (const float x : row) EXPECT_NEAR(x, c, std::abs(c) * 0x1p-22F + 1e-8F / 3) << c;
  }
}

TEST(RowQuantiser, FourLevelsComeBackExactly) {
  std::vector<float> row;
  for (int i = 0; i < 64; ++i) row.push_back(static_cast<float>(i % 4) - 1);  // -1 0 1 2
  const std::vector<float> expected = row;
  RowQuantiser(QuantiserSpec{}, 64).Reconstruct(row.data());
  EXPECT_EQ(row, expected);
}

TEST(Quantise, RefusesNonFiniteRowsByNumber) {
  for (const float bad : {std::nanf(""), kInfinity, -kInfinity}) {
    std::vector<float> rows(4 * 64, 1.0F);
    rows[2 * 64 + 63] = bad;
    try {
      Quantise({rows.data(), 4, 64}, QuantiserSpec{}, 1);
      FAIL() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kNumeric);
      EXPECT_NE(std::string(error.what()).find("row 2"), std::string::npos) << error.what();
    }
  }
}

TEST(Quantise, DoesNotDependOnThreads) {
  Random random(15);
  std::vector<float> rows;
  for (int i = 0; i < 1000; ++i) {
    const std::vector<float> row = NormalRow(random, 64);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const QuantisedRows one = Quantise({rows.data(), 1000, 64}, QuantiserSpec{}, 1);
  const QuantisedRows four = Quantise({rows.data(), 1000, 64}, QuantiserSpec{}, 4);
  EXPECT_EQ(one.packed, four.packed);
  EXPECT_EQ(one.scale, four.scale);
  EXPECT_EQ(one.zero, four.zero);
}

TEST(Packing, EveryByteSurvivesAndQuartersAreInOrder) {
  std::vector<uint8_t> bytes(256);
  for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
  std::vector<uint8_t> codes(1024);
  UnpackQuarters(bytes.data(), 1024, codes.data());
  for (size_t i = 0; i < 256; ++i) {
    for (size_t part = 0; part < 4; ++part) {
      ASSERT_EQ(codes[part * 256 + i], (i >> (2 * part)) & 3);
    }
  }
  std::vector<uint8_t> packed(256);
  PackQuarters(codes.data(), 1024, packed.data());
  EXPECT_EQ(packed, bytes);
}

TEST(Packing, CodesOutsideTheirRangeDoNotReachNeighbours) {
  const std::vector<uint8_t> codes = {0xff, 0, 0, 0};
  uint8_t packed = 0;
  PackQuarters(codes.data(), 4, &packed);
  EXPECT_EQ(packed, 3);
}

}  // namespace
}  // namespace oscar
