#include "oscar/linalg/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "linalg/random_matrix.h"

namespace oscar {
namespace {

// Digit reversal by text: digits of i with the given radices, most significant first, reversed
// together with their radices.
int64_t ReverseDigits(int64_t i, std::vector<int64_t> radices) {
  std::vector<int64_t> digits(radices.size());
  for (size_t k = radices.size(); k-- > 0;) {
    digits[k] = i % radices[k];
    i /= radices[k];
  }
  std::reverse(digits.begin(), digits.end());
  std::reverse(radices.begin(), radices.end());
  int64_t result = 0;
  for (size_t k = 0; k < digits.size(); ++k) result = result * radices[k] + digits[k];
  return result;
}

std::vector<int64_t> RadicesOf(int64_t dim) {
  std::vector<int64_t> radices;
  while (dim % 2 == 0) {
    radices.push_back(2);
    dim /= 2;
  }
  radices.insert(radices.begin(), dim);
  return radices;
}

TEST(BitReversal, ReversesMixedRadixDigits) {
  for (const int64_t dim : {1, 2, 3, 6, 12, 64, 80, 96, 100, 112, 128, 192, 256, 320, 512, 576}) {
    const std::vector<int64_t> reversal = BitReversal(dim);
    for (int64_t i = 0; i < dim; ++i) {
      EXPECT_EQ(reversal[static_cast<size_t>(i)], ReverseDigits(i, RadicesOf(dim))) << dim;
    }
    std::vector<int64_t> sorted = reversal;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < dim; ++i) EXPECT_EQ(sorted[static_cast<size_t>(i)], i);
  }
}

TEST(BitReversal, StartsAsPublishedForHeadDim128) {
  const std::vector<int64_t> reversal = BitReversal(128);
  EXPECT_EQ(std::vector<int64_t>(reversal.begin(), reversal.begin() + 8),
            (std::vector<int64_t>{0, 64, 32, 96, 16, 80, 48, 112}));
}

TEST(OfficialPermutation, IsFixedForAscendingEigenvalues) {
  for (const int64_t dim : {4, 16, 64, 128, 256}) {
    const std::vector<int64_t> reversal = BitReversal(dim);
    const std::vector<int64_t> perm = OfficialPermutation(test::GeometricSpectrum(dim, 1e3));
    for (int64_t j = 0; j < dim; ++j) {
      EXPECT_EQ(perm[static_cast<size_t>(j)], dim - 1 - reversal[static_cast<size_t>(j)]);
    }
  }
  const std::vector<int64_t> perm = OfficialPermutation(test::GeometricSpectrum(128, 2));
  EXPECT_EQ(std::vector<int64_t>(perm.begin(), perm.begin() + 8),
            (std::vector<int64_t>{127, 63, 95, 31, 111, 47, 79, 15}));
}

TEST(OfficialPermutation, RanksByEigenvalueAndKeepsTheOrderOfTies) {
  // Ranks of {3, 1, 3, 2}: 0, 2, 3, 1; bit reversal of 4: 0, 2, 1, 3.
  const std::vector<double> eigenvalues{3, 1, 3, 2};
  EXPECT_EQ(OfficialPermutation(eigenvalues), (std::vector<int64_t>{0, 3, 2, 1}));
  const std::vector<double> ties(8, 1.0);
  const std::vector<int64_t> reversal = BitReversal(8);
  const std::vector<int64_t> perm = OfficialPermutation(ties);
  for (size_t i = 0; i < 8; ++i)
    EXPECT_EQ(perm[static_cast<size_t>(reversal[i])], static_cast<int64_t>(i));
}

TEST(PermuteColumns, TakesColumnPermOfJ) {
  Matrix x(2, 3);
  x << 1, 2, 3, 4, 5, 6;
  Matrix expected(2, 3);
  expected << 3, 1, 2, 6, 4, 5;
  EXPECT_EQ(PermuteColumns(x, std::vector<int64_t>{2, 0, 1}), expected);
}

}  // namespace
}  // namespace oscar
