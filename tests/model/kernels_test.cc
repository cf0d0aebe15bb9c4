// The CPU loops: elementwise work and second moments.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>

#include "model/compare.h"
#include "oscar/core/random.h"
#include "oscar/model/layer_kernels.h"
#include "oscar/model/second_moment.h"

namespace oscar {
namespace {

std::vector<float> Normals(size_t count, uint64_t seed, double scale = 1) {
  Random random(seed);
  std::vector<float> out(count);
  for (float& x : out) x = static_cast<float>(scale * random.Normal());
  return out;
}

TEST(RmsNormRows, MatchesTheFormula) {
  for (const int64_t dim : {1, 15, 16, 17, 64, 576}) {
    const auto size = static_cast<size_t>(dim);
    const std::vector<float> x = Normals(3 * size, 1, 5);
    const std::vector<float> weight = Normals(size, 2);
    std::vector<float> out(x.size());
    RmsNormRows(x.data(), weight.data(), 1e-5F, 3, dim, out.data());
    for (size_t t = 0; t < 3; ++t) {
      double squares = 0;
      for (size_t i = 0; i < size; ++i) squares += std::pow(double{x[t * size + i]}, 2);
      const double scale = 1 / std::sqrt(squares / static_cast<double>(dim) + 1e-5F);
      for (size_t i = 0; i < size; ++i) {
        const double expected = x[t * size + i] * scale * weight[i];
        // The mean of squares has at most dim / 16 + 5 roundings, halved by the square root; three
        // more for the root, the quotient and two products.
        const double bound = (static_cast<double>(dim) / 32 + 8) * 0x1p-24;
        EXPECT_NEAR(out[t * size + i], expected, bound * std::abs(expected)) << dim;
      }
    }
  }
}

TEST(RmsNormRows, WorksInPlaceAndOnZeros) {
  std::vector<float> x(32, 0.0F);
  x[16] = 2.0F;  // second row: mean square 4 / 16
  const std::vector<float> ones(16, 1.0F);
  RmsNormRows(x.data(), ones.data(), 0.0F, 2, 16, x.data());
  EXPECT_TRUE(std::isnan(x[0]));  // 0 * inf without eps
  EXPECT_EQ(x[16], 4.0F);
  x.assign(32, 0.0F);
  RmsNormRows(x.data(), ones.data(), 1e-6F, 2, 16, x.data());
  for (const float v : x) EXPECT_EQ(v, 0.0F);
}

TEST(SplitHeadRows, NormalisesAndTurnsPairs) {
  struct Case {
    int64_t heads, dim, rope;
    bool norm;
  };
  for (const Case& c : {Case{3, 64, 64, false}, Case{2, 24, 24, true}, Case{1, 80, 32, true},
                        Case{5, 16, 0, false}, Case{2, 6, 2, true}}) {
    constexpr int64_t kRows = 7;
    const int64_t stride = c.heads * c.dim + 11;  // the projection has more columns
    const std::vector<float> x = Normals(static_cast<size_t>(kRows * stride), 3);
    const std::vector<float> norm = Normals(static_cast<size_t>(c.dim), 4);
    const int64_t half = c.rope / 2;
    std::vector<float> cos, sin;
    for (int64_t i = 0; i < kRows * half; ++i) {
      cos.push_back(std::cos(0.37F * static_cast<float>(i)));
      sin.push_back(std::sin(0.37F * static_cast<float>(i)));
    }
    std::vector<float> out(static_cast<size_t>(kRows * c.heads * c.dim));
    SplitHeadRows(x.data(), stride, cos.data(), sin.data(), kRows,
                  {c.heads, c.dim, c.norm ? norm.data() : nullptr, 1e-6F, c.rope}, out.data());
    test::WorstError worst;
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t h = 0; h < c.heads; ++h) {
        std::vector<double> head;
        double squares = 0;
        for (int64_t i = 0; i < c.dim; ++i) {
          head.push_back(x[static_cast<size_t>(t * stride + h * c.dim + i)]);
          squares += head.back() * head.back();
        }
        if (c.norm) {
          for (int64_t i = 0; i < c.dim; ++i) {
            head[static_cast<size_t>(i)] *=
                norm[static_cast<size_t>(i)] /
                std::sqrt(squares / static_cast<double>(c.dim) + double{1e-6F});
          }
        }
        for (int64_t i = 0; i < c.dim; ++i) {
          double expected = head[static_cast<size_t>(i)];
          if (i < c.rope) {
            const int64_t pair = i % half;
            const double co = cos[static_cast<size_t>(t * half + pair)];
            const double si = sin[static_cast<size_t>(t * half + pair)];
            const double other = head[static_cast<size_t>(i < half ? i + half : i - half)];
            expected = i < half ? expected * co - other * si : expected * co + other * si;
          }
          worst.Add(out[static_cast<size_t>((t * c.heads + h) * c.dim + i)], expected);
        }
      }
    }
    // Some ten roundings of numbers no larger than the largest entry (norm: as above).
    EXPECT_LE(worst.relative(), 16 * 0x1p-24) << worst.Where();
  }
}

TEST(SiluTimes, IsWithinAFewRoundings) {
  std::vector<float> gate;
  for (int i = -2000; i <= 2000; ++i) gate.push_back(static_cast<float>(i) * 0.0437F);
  const std::vector<float> input = gate;
  const std::vector<float> up = Normals(gate.size(), 5);
  SiluTimes(up.data(), static_cast<int64_t>(gate.size()), gate.data());
  for (size_t i = 0; i < gate.size(); ++i) {
    const double x = input[i];
    const double expected = x / (1 + std::exp(-x)) * up[i];
    // exp within 4 units of 2^-24 (polynomial and reduction), then four operations.
    EXPECT_NEAR(gate[i], expected, 8 * 0x1p-24 * std::abs(expected)) << x;
  }
}

TEST(SiluTimes, Extremes) {
  std::vector<float> gate = {0.0F, 1000.0F, -1000.0F, FLT_MIN, -0.0F, NAN};
  const std::vector<float> ones(gate.size(), 1.0F);
  SiluTimes(ones.data(), static_cast<int64_t>(gate.size()), gate.data());
  EXPECT_EQ(gate[0], 0.0F);
  EXPECT_EQ(gate[1], 1000.0F);
  EXPECT_NEAR(gate[2], 0.0F, 1e-30F);
  EXPECT_EQ(gate[3], FLT_MIN / 2);
  EXPECT_EQ(gate[4], 0.0F);
  EXPECT_TRUE(std::isnan(gate[5]));
}

TEST(RoundToBFloat16, EqualsTheScalarFunctionOnAllUpperHalves) {
  // Every upper half with lower halves around the tie, the tie itself and the ends.
  std::vector<float> x;
  for (uint32_t high = 0; high < 0x10000U; ++high) {
    for (const uint32_t low : {0x0000U, 0x0001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU}) {
      x.push_back(std::bit_cast<float>(high << 16 | low));
    }
  }
  std::vector<BFloat16> out(x.size());
  RoundToBFloat16(x.data(), static_cast<int64_t>(x.size()), out.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(out[i].bits, ToBFloat16(x[i]).bits) << std::hexfloat << x[i];
  }
}

TEST(SumOfExps, IsExactToFloat64) {
  for (const size_t count : {1U, 15U, 16U, 17U, 4099U}) {
    const std::vector<float> x = Normals(count, 8, 40);
    std::vector<double> exps(count);
    const double shift = 3.25;
    const double sum = SumOfExps(x.data(), static_cast<int64_t>(count), shift, exps.data());
    long double expected_sum = 0;
    for (size_t i = 0; i < count; ++i) {
      const double expected = std::exp(double{x[i]} - shift);
      EXPECT_NEAR(exps[i], expected, 0x1p-50 * expected) << x[i];
      expected_sum += expected;
    }
    EXPECT_NEAR(sum, static_cast<double>(expected_sum),
                0x1p-44 * static_cast<double>(expected_sum));
  }
}

TEST(SumOfExps, Extremes) {
  const std::vector<float> x = {0.0F, -1e30F, 1e30F, 88.0F, -INFINITY};
  std::vector<double> exps(x.size());
  SumOfExps(x.data(), 5, 0.0, exps.data());
  EXPECT_EQ(exps[0], 1.0);
  EXPECT_LT(exps[1], 1e-300);
  EXPECT_GT(exps[2], 1e300);
  EXPECT_NEAR(exps[3], std::exp(88.0), 0x1p-50 * std::exp(88.0));
  EXPECT_LT(exps[4], 1e-300);
}

TEST(WeightedDifference, SumsExactIntegersExactly) {
  std::vector<float> x, y;
  std::vector<double> weights;
  double expected = 0;
  for (int i = 0; i < 133; ++i) {
    x.push_back(static_cast<float>(i % 11));
    y.push_back(static_cast<float>(i % 7));
    weights.push_back(i % 5 - 2);
    expected += weights.back() * (double{x.back()} - double{y.back()});
    EXPECT_EQ(WeightedDifference(weights.data(), x.data(), y.data(), i + 1), expected);
  }
}

TEST(Largest, FindsItAnywhere) {
  for (size_t count = 1; count < 50; ++count) {
    for (size_t at = 0; at < count; ++at) {
      std::vector<float> x(count, -2.0F);
      x[at] = -1.5F;
      EXPECT_EQ(Largest(x.data(), static_cast<int64_t>(count)), -1.5F);
    }
  }
}

// Rows of one head inside rows of a longer stride.
template <typename T>
struct Input {
  std::vector<T> data;
  int64_t tokens, stride;
  StridedRows<T> rows() const { return {data.data() + 3, tokens, stride}; }
};

TEST(SecondMomentSum, IsExactOnSmallIntegers) {
  // Entries up to 7: sums below 2^24 are exact in float32, whatever the order.
  for (const int64_t dim : {1, 8, 16, 24, 31, 32, 33, 64, 80, 128, 257}) {
    for (const int64_t tokens : {0, 1, 2, 31, 32, 33, 63, 64, 65, 127, 200}) {
      Random random(static_cast<uint64_t>(1000 * dim + tokens));
      const int64_t stride = dim + 5;
      Input<float> floats{{}, tokens, stride};
      Input<BFloat16> halves{{}, tokens, stride};
      Input<double> doubles{{}, tokens, stride};
      std::vector<double> weights;
      for (int64_t t = 0; t < tokens; ++t) weights.push_back(static_cast<double>(t % 5) - 1);
      for (int64_t i = 0; i < tokens * stride + 3; ++i) {
        const float x = static_cast<float>(random.Below(15)) - 7.0F;
        floats.data.push_back(x);
        halves.data.push_back(ToBFloat16(x));
        doubles.data.push_back(x);
      }
      SecondMomentSum by_float(dim), by_half(dim), by_double(dim), weighted(dim),
          weighted_half(dim);
      by_float.Add(floats.rows());
      by_half.Add(halves.rows());
      by_double.Add(doubles.rows());
      weighted.AddWeighted(floats.rows(), weights.data());
      weighted_half.AddWeighted(halves.rows(), weights.data());

      const auto size = static_cast<size_t>(dim * dim);
      std::vector<double> expected(size), expected_weighted(size), sums(static_cast<size_t>(dim));
      for (int64_t t = 0; t < tokens; ++t) {
        const float* row = floats.rows().data + t * stride;
        for (int64_t i = 0; i < dim; ++i) {
          sums[static_cast<size_t>(i)] += row[i];
          for (int64_t j = 0; j < dim; ++j) {
            const double product = double{row[i]} * row[j];
            expected[static_cast<size_t>(i * dim + j)] += product;
            expected_weighted[static_cast<size_t>(i * dim + j)] +=
                weights[static_cast<size_t>(t)] * product;
          }
        }
      }
      std::vector<double> actual(size);
      for (const SecondMomentSum* sum : {&by_float, &by_half, &by_double}) {
        sum->StoreMatrix(actual.data());
        ASSERT_EQ(actual, expected) << dim << " x " << tokens;
        ASSERT_TRUE(std::equal(sums.begin(), sums.end(), sum->row_sum().begin()));
      }
      for (const SecondMomentSum* sum : {&weighted, &weighted_half}) {
        sum->StoreMatrix(actual.data());
        ASSERT_EQ(actual, expected_weighted) << dim << " x " << tokens;
      }
    }
  }
}

TEST(SecondMomentSum, KeepsItsErrorBound) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kTokens = 3000;
  const std::vector<float> x = Normals(kDim * kTokens, 6);
  SecondMomentSum sum(kDim);
  // In two calls: sums go on.
  sum.Add(StridedRows<float>{x.data(), 1000, kDim});
  sum.Add(StridedRows<float>{x.data() + 1000 * kDim, kTokens - 1000, kDim});
  std::vector<double> actual(kDim * kDim);
  sum.StoreMatrix(actual.data());
  for (int64_t i = 0; i < kDim; ++i) {
    for (int64_t j = 0; j < kDim; ++j) {
      double expected = 0, magnitude = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        const double product = double{x[static_cast<size_t>(t * kDim + i)]} *
                               double{x[static_cast<size_t>(t * kDim + j)]};
        expected += product;
        magnitude += std::abs(product);
      }
      EXPECT_NEAR(actual[static_cast<size_t>(i * kDim + j)], expected,
                  SecondMomentSum::kBlockTokens * 0x1p-24 * magnitude);
    }
  }
}

TEST(SecondMomentSum, BFloat16RowsAreExactToFloat64) {
  constexpr int64_t kDim = 96;
  constexpr int64_t kTokens = 500;
  std::vector<BFloat16> x;
  for (const float v : Normals(kDim * kTokens, 7, 3)) x.push_back(ToBFloat16(v));
  SecondMomentSum sum(kDim);
  sum.Add(StridedRows<BFloat16>{x.data(), kTokens, kDim});
  std::vector<double> actual(kDim * kDim);
  sum.StoreMatrix(actual.data());
  test::WorstError worst;
  for (int64_t i = 0; i < kDim; ++i) {
    for (int64_t j = 0; j < kDim; ++j) {
      double expected = 0;
      for (int64_t t = 0; t < kTokens; ++t) {
        expected += double{ToFloat(x[static_cast<size_t>(t * kDim + i)])} *
                    double{ToFloat(x[static_cast<size_t>(t * kDim + j)])};
      }
      worst.Add(actual[static_cast<size_t>(i * kDim + j)], expected);
    }
  }
  EXPECT_LE(worst.relative(), kTokens * DBL_EPSILON) << worst.Where();
}

TEST(SecondMomentSum, CarriesNotANumber) {
  std::vector<float> x(64, 1.0F);
  x[5] = NAN;
  SecondMomentSum sum(32);
  sum.Add(StridedRows<float>{x.data(), 2, 32});
  EXPECT_TRUE(std::isnan(sum.row_sum()[5]));
  EXPECT_EQ(sum.row_sum()[6], 2.0);
}

}  // namespace
}  // namespace oscar
