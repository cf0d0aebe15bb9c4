#include "oscar/linalg/hadamard.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/linalg/orthogonality.h"
#include "oscar/linalg/permutation.h"

namespace oscar {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
const int64_t kDims[] = {1, 2, 4, 16, 64, 80, 96, 100, 112, 128, 192, 256, 320, 512, 576, 7, 6};

// The definition by recursion, H_2n = [[H, H], [H, -H]] / sqrt 2.
Matrix Recursive(int64_t n) {
  Matrix h = Matrix::Ones(1, 1);
  while (h.rows() < n) {
    const Eigen::Index half = h.rows();
    Matrix next(2 * half, 2 * half);
    next << h, h, h, -h;
    h = next / std::sqrt(2.0);
  }
  return h;
}

TEST(Hadamard, IsSylvestersForPowersOfTwo) {
  for (const int64_t n : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
    const Matrix expected = Recursive(n);
    // log2 n divisions by sqrt 2, each rounded: relative error below log2(n) eps.
    EXPECT_LE((HadamardMatrix(n) - expected).cwiseAbs().maxCoeff(), 10 * kEps) << n;
    EXPECT_EQ((HadamardMatrix(n).array() > 0).count(), (expected.array() > 0).count());
    EXPECT_EQ(HadamardKind(n), "sylvester");
  }
}

TEST(Hadamard, IsOrthogonalAndItsOwnInverseForEveryHeadDim) {
  for (const int64_t n : kDims) {
    const Matrix h = HadamardMatrix(n);
    EXPECT_LT(OrthogonalityError(h), 1e-12) << n;
    EXPECT_EQ(h, Matrix(h.transpose())) << n;
    EXPECT_EQ(h, HadamardMatrix(n)) << n;
  }
}

TEST(Hadamard, BlocksAreTheLargestPowerOfTwoThatDivides) {
  const std::pair<int64_t, int64_t> cases[] = {{80, 16},  {96, 32},  {100, 4},  {112, 16},
                                               {192, 64}, {320, 64}, {576, 64}, {7, 1}};
  for (const auto& [n, block] : cases) {
    EXPECT_EQ(LargestPowerOfTwoDivisor(n), block);
    EXPECT_EQ(HadamardKind(n), "block_" + std::to_string(block));
    const Matrix h = HadamardMatrix(n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        if (i / block == j / block) {
          EXPECT_EQ(std::abs(h(i, j)), 1 / std::sqrt(static_cast<double>(block)));
        } else {
          EXPECT_EQ(h(i, j), 0);
        }
      }
    }
  }
}

TEST(Hadamard, ButterfliesEqualTheMatrixProduct) {
  for (const int64_t n : kDims) {
    const Matrix a = test::RandomNormal(5, n, static_cast<uint64_t>(n));
    Matrix fast = a;
    MultiplyByHadamard(fast);
    const Matrix slow = a * HadamardMatrix(n);
    // Sums of n terms below 5 in magnitude with weights 1 / sqrt(b).
    EXPECT_LE((fast - slow).cwiseAbs().maxCoeff(), 5 * static_cast<double>(n) * kEps) << n;
    // Small integers: the butterflies add without rounding.
    Matrix integers = Matrix::Zero(1, n);
    integers(0, n - 1) = 8;
    Matrix product = integers;
    MultiplyByHadamard(product);
    EXPECT_EQ(product, Matrix(integers * HadamardMatrix(n))) << n;
  }
}

// diag(H^T L H) = tr(L) / d for a power of two (Lemma 1 of the paper): energy is spread evenly.
TEST(Hadamard, SpreadsADiagonalEvenly) {
  for (const int64_t n : kDims) {
    const int64_t block = LargestPowerOfTwoDivisor(n);
    const std::vector<double> spectrum = test::GeometricSpectrum(n, 1e3);
    const Matrix h = HadamardMatrix(n);
    const auto spread = [&](const std::vector<int64_t>& order) {
      double largest = 0, sum = 0;
      for (int64_t j = 0; j < n; ++j) {
        double energy = 0;
        for (int64_t i = 0; i < n; ++i) {
          energy +=
              spectrum[static_cast<size_t>(order[static_cast<size_t>(i)])] * h(i, j) * h(i, j);
        }
        largest = std::max(largest, energy);
        sum += energy;
      }
      return largest / (sum / static_cast<double>(n));
    };
    std::vector<int64_t> plain(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) plain[static_cast<size_t>(i)] = i;
    const double dealt = spread(DealOverBlocks(n));
    if (block == n) {
      EXPECT_NEAR(dealt, 1, static_cast<double>(n) * kEps);
      EXPECT_EQ(DealOverBlocks(n), plain);
    } else if (block > 1) {
      // Dealt, neighbouring blocks differ by one eigenvalue step, 1e3^(1 / (n - 1)), a card; the
      // largest over the mean is below that step to the power of the number of blocks. Contiguous
      // blocks keep the top of the spectrum together.
      const double step = std::pow(1e3, 1 / static_cast<double>(n - 1));
      EXPECT_LT(dealt, std::pow(step, static_cast<double>(n / block))) << n;
      EXPECT_LT(dealt, spread(plain)) << n;
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

// Method.md's identity: H P = D Pi_br H with D = diag((-1)^popcount(i)) for ascending eigenvalues.
TEST(Hadamard, PermutingAfterItEqualsSignsAndReversalBeforeIt) {
  for (const int64_t n : {4, 16, 64, 128}) {
    const Matrix h = HadamardMatrix(n);
    const std::vector<int64_t> reversal = BitReversal(n);
    const Matrix left = PermuteColumns(h, OfficialPermutation(test::GeometricSpectrum(n, 10)));
    for (int64_t i = 0; i < n; ++i) {
      const double sign =
          __builtin_popcountll(static_cast<unsigned long long>(i)) % 2 == 0 ? 1 : -1;
      for (int64_t j = 0; j < n; ++j) {
        ASSERT_EQ(left(i, j), sign * h(reversal[static_cast<size_t>(i)], j)) << n;
      }
    }
  }
}

}  // namespace
}  // namespace oscar
