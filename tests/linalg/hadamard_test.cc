#include "oscar/linalg/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "linalg/random_matrix.h"
#include "oscar/core/hadamard.h"
#include "oscar/linalg/orthogonality.h"
#include "oscar/linalg/permutation.h"

namespace oscar {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
const int64_t kDims[] = {1, 2, 4, 16, 64, 80, 96, 100, 112, 128, 192, 256, 320, 512, 576, 7, 6};

// H by its definition, for any dim.
Matrix Definition(int64_t dim) {
  int64_t block = 1;
  while (dim % (2 * block) == 0) block *= 2;
  Matrix h = Matrix::Zero(dim, dim);
  for (int64_t i = 0; i < dim; ++i) {
    for (int64_t j = 0; j < dim; ++j) {
      if (i / block != j / block) continue;
      const auto common = static_cast<uint64_t>((i % block) & (j % block));
      h(i, j) = (std::popcount(common) % 2 == 0 ? 1 : -1) / std::sqrt(static_cast<double>(block));
    }
  }
  return h;
}

TEST(Hadamard, IsOrthogonalAndItsOwnInverseForEveryHeadDim) {
  for (const int64_t n : kDims) {
    const Matrix h = TimesHadamard(Matrix::Identity(n, n));
    EXPECT_EQ(h, Definition(n)) << n;
    EXPECT_EQ(h, Matrix(h.transpose())) << n;
    EXPECT_LT(OrthogonalityError(h), 1e-12) << n;
  }
}

TEST(Hadamard, ProductsFromBothSidesEqualTheMatrixProduct) {
  for (const int64_t n : kDims) {
    const Matrix a = test::RandomNormal(5, n, static_cast<uint64_t>(n));
    // Sums of n terms below 5 in magnitude with weights 1 / sqrt(b).
    const double bound = 5 * static_cast<double>(n) * kEps;
    EXPECT_LE((TimesHadamard(a) - a * Definition(n)).cwiseAbs().maxCoeff(), bound) << n;
    const Matrix b = a.transpose();
    EXPECT_LE((HadamardTimes(b) - Definition(n) * b).cwiseAbs().maxCoeff(), bound) << n;
  }
}

// Largest over mean of diag(H^T L H) when the eigenvalues enter in the given order.
double Spread(const std::vector<double>& spectrum, const std::vector<int64_t>& order) {
  const auto n = static_cast<int64_t>(spectrum.size());
  const Matrix h = Definition(n);
  double largest = 0, sum = 0;
  for (int64_t j = 0; j < n; ++j) {
    double energy = 0;
    for (int64_t i = 0; i < n; ++i) {
      energy += spectrum[static_cast<size_t>(order[static_cast<size_t>(i)])] * h(i, j) * h(i, j);
    }
    largest = std::max(largest, energy);
    sum += energy;
  }
  return largest / (sum / static_cast<double>(n));
}

// diag(H^T L H) = tr(L) / d for a power of two (Lemma 1 of the paper): energy is spread evenly.
TEST(Hadamard, SpreadsADiagonalEvenly) {
  for (const int64_t n : kDims) {
    const int64_t block = HadamardBlock(n);
    const std::vector<double> spectrum = test::GeometricSpectrum(n, 1e3);
    std::vector<int64_t> plain(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) plain[static_cast<size_t>(i)] = i;
    const double dealt = Spread(spectrum, DealOverBlocks(n));
    if (block == n) {
      EXPECT_NEAR(dealt, 1, static_cast<double>(n) * kEps);
      EXPECT_EQ(DealOverBlocks(n), plain);
    } else if (block > 1) {
      // Card r of two blocks differs by less than n / b steps of the spectrum, so their sums do.
      const double step = std::pow(1e3, 1 / static_cast<double>(n - 1));
      EXPECT_LT(dealt, std::pow(step, static_cast<double>(n / block))) << n;
      // Contiguous blocks keep the top of the spectrum together.
      EXPECT_LT(dealt, Spread(spectrum, plain)) << n;
    }
  }
}

TEST(Hadamard, DealingIsAPermutation) {
  for (const int64_t n : kDims) {
    std::vector<int64_t> order = DealOverBlocks(n);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < n; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  }
  EXPECT_EQ(DealOverBlocks(6), (std::vector<int64_t>{0, 3, 1, 4, 2, 5}));
}

// H P = D Pi_br H with D = diag((-1)^popcount(i)) for ascending eigenvalues: permuting after H is
// flipping signs of eigenvectors and feeding them to H in bit-reversed order.
TEST(Hadamard, PermutingAfterItEqualsSignsAndReversalBeforeIt) {
  for (const int64_t n : {4, 16, 64, 128}) {
    const Matrix h = Definition(n);
    const std::vector<int64_t> reversal = BitReversal(n);
    const Matrix left = PermuteColumns(h, OfficialPermutation(test::GeometricSpectrum(n, 10)));
    for (int64_t i = 0; i < n; ++i) {
      const double sign = std::popcount(static_cast<uint64_t>(i)) % 2 == 0 ? 1 : -1;
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(left(i, j), sign * h(reversal[static_cast<size_t>(i)], j)) << n;
      }
    }
  }
}

}  // namespace
}  // namespace oscar
