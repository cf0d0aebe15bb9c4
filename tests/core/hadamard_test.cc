#include "oscar/core/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "oscar/core/random.h"

namespace oscar {
namespace {

// Recursive definition: H_1 = [1], H_2n = [[H, H], [H, -H]] / sqrt(2).
std::vector<double> Recursive(int64_t n) {
  if (n == 1) return {1.0};
  const std::vector<double> half = Recursive(n / 2);
  const int64_t m = n / 2;
  std::vector<double> h(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const double sign = i >= m && j >= m ? -1 : 1;
      h[static_cast<size_t>(i * n + j)] =
          sign * half[static_cast<size_t>((i % m) * m + j % m)] / std::sqrt(2.0);
    }
  }
  return h;
}

TEST(Hadamard, MatchesTheRecursiveDefinition) {
  for (const int64_t n : {1, 2, 4, 64, 128, 256}) {
    const std::vector<double> expected = Recursive(n);
    const std::vector<double> found = HadamardMatrix(n);
    ASSERT_EQ(found.size(), expected.size());
    // log2(n) successive divisions by sqrt(2), each within half a unit in the last place.
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-15) << i;
  }
}

TEST(Hadamard, IsOrthogonalForEveryHeadDim) {
  for (const int64_t n : {64, 80, 96, 100, 112, 128, 192, 256, 320, 512, 576, 7}) {
    const std::vector<double> h = HadamardMatrix(n);
    const int64_t block = HadamardBlock(n);
    EXPECT_EQ(n % block, 0);
    EXPECT_EQ((n / block) % 2, 1) << "not the largest power of two";
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < n; ++d) {
          dot += h[static_cast<size_t>(i * n + d)] * h[static_cast<size_t>(j * n + d)];
        }
        worst = std::max(worst, std::abs(dot - (i == j ? 1 : 0)));
      }
    }
    EXPECT_LT(worst, 1e-12) << n;
  }
}

TEST(Hadamard, KindNamesTheBlock) {
  EXPECT_EQ(HadamardKind(128), "sylvester");
  EXPECT_EQ(HadamardKind(96), "block(32)");
  EXPECT_EQ(HadamardKind(7), "block(1)");
}

TEST(Hadamard, FastTransformEqualsTheMatrix) {
  Random random(7);
  for (const int64_t n : {1, 2, 64, 96, 100, 256, 320}) {
    std::vector<double> x(static_cast<size_t>(3 * n));
    for (double& value : x) value = random.Normal();
    std::vector<double> fast = x;
    ApplyHadamard(MatrixView<double>{fast.data(), 3, n});
    std::vector<float> single(x.begin(), x.end());
    ApplyHadamard(MatrixView<float>{single.data(), 3, n});
    const std::vector<double> h = HadamardMatrix(n);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double expected = 0;
        double magnitude = 0;
        for (int64_t d = 0; d < n; ++d) {
          const double term = x[static_cast<size_t>(i * n + d)] * h[static_cast<size_t>(d * n + j)];
          expected += term;
          magnitude += std::abs(term);
        }
        // At most 8 levels of additions and one scaling, each relative to the sum of magnitudes.
        const auto at = static_cast<size_t>(i * n + j);
        EXPECT_NEAR(fast[at], expected, 12 * std::numeric_limits<double>::epsilon() * magnitude);
        EXPECT_NEAR(single[at], expected, 12 * std::numeric_limits<float>::epsilon() * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace oscar
