#include "oscar/quant/transform.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"
#include "oscar/core/random.h"
#include "oscar/quant/matmul.h"

namespace oscar {
namespace {

constexpr double kEpsilon = 0x1p-24;  // unit roundoff of float32

std::vector<float> Normals(Random& random, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = static_cast<float>(random.Normal());
  return values;
}

// Orthonormal rows by Gram-Schmidt in float64, rounded once.
std::vector<float> RandomRotation(Random& random, int64_t dim) {
  std::vector<std::vector<double>> rows;
  for (int64_t i = 0; i < dim; ++i) {
    std::vector<double> row(static_cast<size_t>(dim));
    for (double& x : row) x = random.Normal();
    for (int pass = 0; pass < 2; ++pass) {
      for (const std::vector<double>& other : rows) {
        double dot = 0;
        for (size_t d = 0; d < row.size(); ++d) dot += row[d] * other[d];
        for (size_t d = 0; d < row.size(); ++d) row[d] -= dot * other[d];
      }
    }
    double norm = 0;
    for (const double x : row) norm += x * x;
    for (double& x : row) x /= std::sqrt(norm);
    rows.push_back(row);
  }
  std::vector<float> matrix;
  for (const auto& row : rows) matrix.insert(matrix.end(), row.begin(), row.end());
  return matrix;
}

TEST(Matmul, StaysWithinItsBoundForAllShapes) {
  Random random(21);
  for (const int64_t m : {0, 1, 5, 6, 8, 13}) {
    for (const int64_t n : {1, 7, 8, 31, 32, 33, 64}) {
      for (const int64_t k : {0, 1, 3, 64, 100}) {
        const int64_t a_stride = k + 2;
        const std::vector<float> a = Normals(random, m * a_stride + 1);
        const std::vector<float> b = Normals(random, k * n + 1);
        std::vector<float> b_transposed(b.size());
        for (int64_t d = 0; d < k; ++d) {
          for (int64_t j = 0; j < n; ++j) {
            b_transposed[static_cast<size_t>(j * k + d)] = b[static_cast<size_t>(d * n + j)];
          }
        }
        const int64_t c_stride = n + 3;
        std::vector<float> c(static_cast<size_t>(m * c_stride + 1), -7);
        std::vector<float> c2 = c;
        Multiply(m, n, k, {a.data(), a_stride}, {b.data(), n}, {c.data(), c_stride});
        MultiplyTransposed(m, n, k, {a.data(), a_stride}, {b_transposed.data(), k},
                           {c2.data(), c_stride});
        EXPECT_EQ(c, c2);  // the same sums in the same order
        for (int64_t i = 0; i < m; ++i) {
          for (int64_t j = 0; j < c_stride; ++j) {
            const float found = c[static_cast<size_t>(i * c_stride + j)];
            if (j >= n) {
              ASSERT_EQ(found, -7) << "written beyond the row";
              continue;
            }
            double expected = 0;
            double magnitude = 0;
            for (int64_t d = 0; d < k; ++d) {
              const double term = static_cast<double>(a[static_cast<size_t>(i * a_stride + d)]) *
                                  static_cast<double>(b[static_cast<size_t>(d * n + j)]);
              expected += term;
              magnitude += std::abs(term);
            }
            const double gamma = static_cast<double>(k + 1) * kEpsilon;
            ASSERT_NEAR(found, expected, gamma / (1 - gamma) * magnitude) << m << n << k;
          }
        }
      }
    }
  }
  EXPECT_FALSE(MatmulInstructionSet().empty());
}

TEST(Reconstruct, ExactTypeAndIdentityReturnTheRowsThemselves) {
  Random random(22);
  const std::vector<float> x = Normals(random, 5 * 3 * 64);
  std::vector<float> x_hat(x.size());
  SideScheme side;
  side.quantiser.bits = 16;
  Reconstruct(side, {x.data(), 5, 3, 64}, {x_hat.data(), 5, 3, 64}, 2);
  EXPECT_EQ(x, x_hat);
}

TEST(Reconstruct, RotationsOfEachHeadAreAppliedAndUndone) {
  Random random(23);
  const int64_t dim = 96, heads = 3, tokens = 300;  // more than one block of tokens
  std::vector<float> rotations;
  for (int64_t h = 0; h < heads; ++h) {
    const std::vector<float> r = RandomRotation(random, dim);
    rotations.insert(rotations.end(), r.begin(), r.end());
  }
  SideScheme side;
  side.transform = RotationTransform(rotations, heads, dim);
  side.quantiser.bits = 16;
  const std::vector<float> x = Normals(random, tokens * heads * dim);
  const HeadRows<const float> view{x.data(), tokens, heads, dim};
  const RotatedRows rotated(side.transform, false, view, 2);
  std::vector<float> x_hat(x.size());
  Reconstruct(side, view, {x_hat.data(), tokens, heads, dim}, 2);
  for (int64_t t = 0; t < tokens; t += 37) {
    for (int64_t h = 0; h < heads; ++h) {
      double norm = 0;
      for (int64_t d = 0; d < dim; ++d) norm += std::pow(view.At(t, h)[d], 2);
      // Two products of `dim` terms; |row of R| = 1, so each error is below
      // gamma_dim sqrt(dim) |x| in the worst case.
      const double bound =
          2.2 * static_cast<double>(dim) * kEpsilon * std::sqrt(static_cast<double>(dim) * norm);
      for (int64_t j = 0; j < dim; ++j) {
        double expected = 0;
        for (int64_t d = 0; d < dim; ++d) {
          expected += static_cast<double>(view.At(t, h)[d]) *
                      static_cast<double>(rotations[static_cast<size_t>((h * dim + d) * dim + j)]);
        }
        ASSERT_NEAR(rotated.Row(t, h)[j], expected, bound);
        ASSERT_NEAR(x_hat[static_cast<size_t>((t * heads + h) * dim + j)], view.At(t, h)[j], bound);
      }
    }
  }
}

TEST(Reconstruct, InversesAreUsedWhenGiven) {
  // x' = 2 x; quantised values are those of the doubled rows, halved on the way back.
  const int64_t dim = 8;
  Transform doubled;
  doubled.dim = dim;
  doubled.matrices.emplace_back(64, 0.0F);
  doubled.inverses.emplace_back(64, 0.0F);
  for (size_t i = 0; i < 8; ++i) {
    doubled.matrices[0][i * 9] = 2;
    doubled.inverses[0][i * 9] = 0.5F;
  }
  SideScheme side;
  side.transform = doubled;
  side.quantiser.bits = 16;
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8};
  std::vector<float> x_hat(8);
  Reconstruct(side, {x.data(), 1, 1, dim}, {x_hat.data(), 1, 1, dim}, 1);
  EXPECT_EQ(x, x_hat);
}

TEST(Reconstruct, HadamardSpreadsAnOutlier) {
  // One channel of 1 among zeros: rotated, all entries are +-1/sqrt(D) and two codes hold them.
  const int64_t dim = 64;
  std::vector<float> x(64, 0.0F);
  x[5] = 1;
  SideScheme side;
  side.transform = HadamardTransform(dim);
  std::vector<float> x_hat(64);
  Reconstruct(side, {x.data(), 1, 1, dim}, {x_hat.data(), 1, 1, dim}, 1);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(x_hat[i], x[i], 1e-6);
}

TEST(Reconstruct, AsServedRoundsRotationAndRows) {
  Random random(24);
  const int64_t dim = 64;
  SideScheme side;
  side.transform = RotationTransform(RandomRotation(random, dim), 0, dim);
  side.as_served = true;
  EXPECT_TRUE(WindowsAreInexact(side));
  const std::vector<float> x = Normals(random, dim);
  const HeadRows<const float> view{x.data(), 1, 1, dim};
  const RotatedRows rotated(side.transform, true, view, 1);
  const std::vector<float>& r = side.transform.matrices[0];
  std::vector<float> expected(64);
  for (size_t j = 0; j < 64; ++j) {
    EXPECT_EQ(RoundToBFloat16(rotated.Row(0, 0)[j]), rotated.Row(0, 0)[j]);
    double sum = 0;
    for (size_t d = 0; d < 64; ++d) {
      sum += static_cast<double>(x[d]) * static_cast<double>(RoundToBFloat16(r[d * 64 + j]));
    }
    // One bfloat16 step: float32 rounding may move a value across a rounding boundary.
    EXPECT_NEAR(rotated.Row(0, 0)[j], sum, std::abs(sum) * 0x1p-7);
  }
  std::vector<float> windows(64);
  ReconstructWindows(side, view, {windows.data(), 1, 1, dim}, 1);
  double error = 0;
  double energy = 0;
  for (size_t d = 0; d < 64; ++d) {
    error += std::pow(windows[d] - x[d], 2);
    energy += std::pow(x[d], 2);
  }
  // Rounding to 8 bits of precision, of the rows and twice of the matrix.
  EXPECT_GT(std::sqrt(error / energy), 1e-4);
  EXPECT_LT(std::sqrt(error / energy), 3 * 0x1p-8);
  side.as_served = false;
  EXPECT_FALSE(WindowsAreInexact(side));
  ReconstructWindows(side, view, {windows.data(), 1, 1, dim}, 1);
  EXPECT_EQ(windows, x);
}

TEST(Reconstruct, RefusesWhatDoesNotFit) {
  const std::vector<float> x(2 * 3 * 64, 1.0F);
  std::vector<float> x_hat(x.size());
  const HeadRows<const float> view{x.data(), 2, 3, 64};
  SideScheme side;
  side.transform = HadamardTransform(32);
  EXPECT_THROW(Reconstruct(side, view, {x_hat.data(), 2, 3, 64}, 1), Error);
  side.transform = RotationTransform(std::vector<float>(2 * 64 * 64), 2, 64);
  EXPECT_THROW(Reconstruct(side, view, {x_hat.data(), 2, 3, 64}, 1), Error);
  EXPECT_THROW(RotationTransform(std::vector<float>(63), 0, 8), Error);
  std::vector<float> bad = x;
  bad[(1 * 3 + 2) * 64 + 7] = std::numeric_limits<float>::quiet_NaN();
  side.transform = HadamardTransform(64);
  try {
    Reconstruct(side, {bad.data(), 2, 3, 64}, {x_hat.data(), 2, 3, 64}, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNumeric);
    EXPECT_NE(std::string(error.what()).find("token 1, KV head 2"), std::string::npos);
  }
}

TEST(MatchedNoise, HasTheNormOfTheErrorRowByRow) {
  Random random(25);
  const int64_t dim = 64, heads = 2, tokens = 50;
  const std::vector<float> x = Normals(random, tokens * heads * dim);
  const HeadRows<const float> view{x.data(), tokens, heads, dim};
  SideScheme side;
  std::vector<float> quantised(x.size());
  std::vector<float> noisy(x.size());
  std::vector<float> again(x.size());
  std::vector<float> other(x.size());
  Reconstruct(side, view, {quantised.data(), tokens, heads, dim}, 1);
  ReconstructMatchedNoise(side, view, {noisy.data(), tokens, heads, dim}, 5, 1);
  ReconstructMatchedNoise(side, view, {again.data(), tokens, heads, dim}, 5, 3);
  ReconstructMatchedNoise(side, view, {other.data(), tokens, heads, dim}, 6, 1);
  EXPECT_EQ(noisy, again);
  EXPECT_NE(noisy, other);
  double along = 0;
  double total = 0;
  for (size_t row = 0; row < static_cast<size_t>(tokens * heads); ++row) {
    double error = 0;
    double noise = 0;
    for (size_t d = row * 64; d < (row + 1) * 64; ++d) {
      const double e = quantised[d] - x[d];
      const double n = noisy[d] - x[d];
      error += e * e;
      noise += n * n;
      along += e * n;
    }
    total += error;
    // Each entry of x_hat is rounded to float32: |x| 2^-24 against errors of about 0.4.
    EXPECT_NEAR(noise / error, 1, 1e-5);
  }
  // Independent directions: the cosine over 6400 entries has standard deviation 1/80.
  EXPECT_LT(std::abs(along / total), 5.0 / 80);
}

TEST(MatchedNoise, IsNothingWhereThereIsNoError) {
  const std::vector<float> x = {1, 2, 3, 4};
  std::vector<float> out(4);
  MatchedNoise({x.data(), 1, 1, 4}, {x.data(), 1, 1, 4}, {out.data(), 1, 1, 4}, 1, 1);
  EXPECT_EQ(out, x);
}

}  // namespace
}  // namespace oscar
