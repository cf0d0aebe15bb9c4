#include "oscar/linalg/eigh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <Eigen/Eigenvalues>
#include <cmath>
#include <limits>
#include <numbers>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/linalg/blas.h"
#include "oscar/linalg/orthogonality.h"

namespace oscar {
namespace {

using test::GeometricSpectrum;
using test::RandomNormal;
using test::RandomOrthogonal;
using test::WithSpectrum;
using testing::HasSubstr;

constexpr double kEps = std::numeric_limits<double>::epsilon();

// Second differences: eigenvalues 2 - 2 cos(j pi / (n + 1)), known in closed form.
Matrix SecondDifference(int64_t n) {
  Matrix a = Matrix::Zero(n, n);
  for (int64_t i = 0; i < n; ++i) {
    a(i, i) = 2;
    if (i > 0) a(i, i - 1) = a(i - 1, i) = -1;
  }
  return a;
}

ErrorCode CodeOf(const Matrix& a, std::string* message = nullptr) {
  try {
    EighSymmetric(a);
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::kUsage;
}

TEST(Eigh, FindsEigenvaluesKnownInClosedForm) {
  for (const int64_t n : {1, 2, 3, 17, 64, 127, 128, 129, 256}) {
    const SymmetricEigen eigen = EighSymmetric(SecondDifference(n));
    for (int64_t j = 0; j < n; ++j) {
      const double expected = 2 - 2 * std::cos(static_cast<double>(j + 1) * std::numbers::pi /
                                               static_cast<double>(n + 1));
      // Weyl: an eigenvalue moves at most by the backward error, a small multiple of n eps |A|_2,
      // and |A|_2 < 4.
      EXPECT_NEAR(eigen.values[static_cast<size_t>(j)], expected,
                  4.0 * static_cast<double>(n) * kEps * 4)
          << n << " " << j;
    }
  }
}

TEST(Eigh, AgreesWithAnotherSolverAndReportsItsErrors) {
  for (const int64_t n : {2, 5, 64, 96, 128}) {
    const Matrix a = WithSpectrum(GeometricSpectrum(n, 1e6), static_cast<uint64_t>(n));
    const SymmetricEigen eigen = EighSymmetric(a);
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> other(a);
    for (int64_t j = 0; j < n; ++j) {
      EXPECT_NEAR(eigen.values[static_cast<size_t>(j)], other.eigenvalues()(j),
                  static_cast<double>(n) * kEps * 1e6);
    }
    // The reported residual is the definition, evaluated here entry by entry.
    double residual = 0, norm = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double product = 0;
        for (int64_t k = 0; k < n; ++k) product += a(i, k) * eigen.vectors(k, j);
        residual +=
            std::pow(product - eigen.vectors(i, j) * eigen.values[static_cast<size_t>(j)], 2);
        norm += a(i, j) * a(i, j);
      }
    }
    // Both evaluations carry rounding of n eps of the products.
    EXPECT_NEAR(eigen.residual, std::sqrt(residual / norm), 2 * static_cast<double>(n) * kEps);
    EXPECT_NEAR(eigen.residual_units, eigen.residual / (static_cast<double>(n) * kEps), 1e-12);
    EXPECT_LT(eigen.residual_units, 10);
    EXPECT_LT(eigen.orthogonality, 10 * static_cast<double>(n) * kEps);
  }
}

TEST(Eigh, ResidualIsScaleFreeFromTinyToHuge) {
  const Matrix a = WithSpectrum(GeometricSpectrum(16, 100), 7);
  for (const double scale : {1e-200, 1e-30, 1.0, 1e30, 1e150}) {
    const SymmetricEigen eigen = EighSymmetric(scale * a);
    EXPECT_LT(eigen.residual_units, 10) << scale;
    EXPECT_GT(eigen.values.front() / scale, 0.9) << scale;
  }
}

TEST(Eigh, HandlesDegenerateMatrices) {
  EXPECT_TRUE(EighSymmetric(Matrix(0, 0)).values.empty());
  const SymmetricEigen zero = EighSymmetric(Matrix::Zero(8, 8));
  EXPECT_EQ(zero.residual, 0);
  EXPECT_EQ(zero.orthogonality, 0);
  for (const double value : zero.values) EXPECT_EQ(value, 0);
  const SymmetricEigen one = EighSymmetric(Matrix::Identity(8, 8));
  for (const double value : one.values) EXPECT_EQ(value, 1);
  EXPECT_EQ(one.residual, 0);
}

TEST(Eigh, RefusesWhatIsNotASymmetricMatrixOfNumbers) {
  std::string message;
  Matrix a = SecondDifference(5);
  a(3, 1) = a(1, 3) = std::nan("");
  EXPECT_EQ(CodeOf(a, &message), ErrorCode::kNumeric);
  EXPECT_THAT(message, HasSubstr("(1, 3)"));
  a = SecondDifference(5);
  a(4, 4) = std::numeric_limits<double>::infinity();
  EXPECT_EQ(CodeOf(a, &message), ErrorCode::kNumeric);
  EXPECT_THAT(message, HasSubstr("inf"));
  a = SecondDifference(5);
  a(0, 1) += 1e-12;
  EXPECT_EQ(CodeOf(a, &message), ErrorCode::kNumeric);
  EXPECT_THAT(message, HasSubstr("not symmetric"));
}

TEST(Eigh, ChecksTheNarrowingToLapackIntegers) {
  EXPECT_EQ(LapackInt(0, "n"), 0);
  EXPECT_EQ(LapackInt(2147483647, "n"), 2147483647);
  try {
    LapackInt(2147483648, "matrix size");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr("matrix size is 2147483648"));
  }
  EXPECT_THROW(LapackInt(-1, "n"), Error);
}

TEST(Signs, LargestEntryBecomesPositiveAndTheFirstOfEqualsDecides) {
  Matrix u(3, 4);
  u << 0.1, -0.5, -0.6, 0.0,  //
      -0.9, 0.5, 0.8, 0.0,    //
      0.2, 0.1, 0.0, 0.0;
  Matrix expected = u;
  expected.col(0) *= -1;
  expected.col(1) *= -1;
  MakeSignsCanonical(u);
  EXPECT_EQ(u, expected);
  MakeSignsCanonical(u);
  EXPECT_EQ(u, expected);
}

TEST(Signs, AnySignsOfTheSolverGiveTheSameCanonicalBasis) {
  const SymmetricEigen eigen = EighSymmetric(WithSpectrum(GeometricSpectrum(32, 1e3), 3));
  Matrix reference = eigen.vectors;
  MakeSignsCanonical(reference);
  Random random(11);
  for (int trial = 0; trial < 20; ++trial) {
    Matrix flipped = eigen.vectors;
    for (int j = 0; j < 32; ++j) {
      if (random.Below(2) == 1) flipped.col(j) *= -1;
    }
    MakeSignsCanonical(flipped);
    EXPECT_EQ(flipped, reference);
  }
}

TEST(Rank, CountsEigenvaluesThatFloat64CanTellFromZero) {
  EXPECT_EQ(NumericalRank(std::vector<double>{}), 0);
  EXPECT_EQ(NumericalRank(std::vector<double>{0, 0}), 0);
  EXPECT_EQ(NumericalRank(std::vector<double>{-1e-18, 1e-14, 1}), 2);
  EXPECT_EQ(NumericalRank(std::vector<double>{1e-17, 0.5, 1}), 2);
  // 7 independent rows in 20 dimensions.
  const Matrix rows = RandomNormal(7, 20, 5);
  const Matrix gram = rows.transpose() * rows;
  EXPECT_EQ(NumericalRank(EighSymmetric(0.5 * (gram + gram.transpose())).values), 7);
}

TEST(Orthogonality, IsTheLargestDeviationOfEitherProduct) {
  EXPECT_EQ(OrthogonalityError(Matrix(0, 0)), 0);
  EXPECT_EQ(OrthogonalityError(Matrix::Identity(4, 4)), 0);
  Matrix a = Matrix::Identity(3, 3);
  a(0, 1) = 0.25;  // R R^T has 1 + 1/16 at (0, 0), both products have 1/4 off the diagonal
  EXPECT_EQ(OrthogonalityError(a), 0.25);
  a(2, 2) = 2;
  EXPECT_EQ(OrthogonalityError(a), 3);
  a(2, 2) = std::nan("");
  EXPECT_TRUE(std::isnan(OrthogonalityError(a)));
}

TEST(Orthogonality, SeparatesTheFileFromWhatIsServed) {
  for (const int64_t dim : {16, 64, 128, 192}) {
    const std::vector<float> stored = RoundToFloat(RandomOrthogonal(dim, 99));
    const StoredOrthogonality error = MeasureStoredOrthogonality(stored, dim);
    // A rounded entry is off by at most u |r|, u = 2^-24 (float32) or 2^-8 / 2 (bfloat16); a dot
    // product of two unit rows then by at most 2 u + u^2.
    EXPECT_GT(error.as_stored, 0);
    EXPECT_LT(error.as_stored, 2.1 * std::ldexp(1.0, -24));
    EXPECT_GT(error.as_served, 100 * error.as_stored);
    EXPECT_LT(error.as_served, 2.1 * std::ldexp(1.0, -9));
  }
}

TEST(Blas, TellsWhichLibraryRuns) {
  SetBlasThreads(1);
  EXPECT_THAT(BlasDescription(), HasSubstr("OpenBLAS"));
  EXPECT_THROW(SetBlasThreads(0), CheckFailure);
}

TEST(Eigh, IsDeterministic) {
  SetBlasThreads(1);
  const Matrix a = WithSpectrum(GeometricSpectrum(128, 1e4), 21);
  const SymmetricEigen first = EighSymmetric(a);
  for (int trial = 0; trial < 3; ++trial) {
    const SymmetricEigen again = EighSymmetric(a);
    EXPECT_EQ(again.values, first.values);
    EXPECT_EQ(again.vectors, first.vectors);
  }
}

}  // namespace
}  // namespace oscar
