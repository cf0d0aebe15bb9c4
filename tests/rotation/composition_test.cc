#include "oscar/rotation/composition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"
#include "oscar/linalg/eigh.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/orthogonality.h"
#include "oscar/linalg/permutation.h"

namespace oscar {
namespace {

using testing::HasSubstr;

const int64_t kHeadDims[] = {64, 80, 96, 100, 112, 128, 192, 256, 320, 512, 576};

// The official program's matrices, built as it builds them: H by recursion, P as a column
// permutation of the identity.
Matrix RecursiveHadamard(int64_t n) {
  Matrix h = Matrix::Ones(1, 1);
  while (h.rows() < n) {
    const Eigen::Index half = h.rows();
    Matrix next(2 * half, 2 * half);
    next << h, h, h, -h;
    h = next / std::sqrt(2.0);
  }
  return h;
}

Matrix ReversalMatrix(int64_t n) {
  Matrix p = Matrix::Zero(n, n);
  int bits = 0;
  while ((int64_t{1} << bits) < n) ++bits;
  for (int64_t i = 0; i < n; ++i) {
    int64_t reversed = 0;
    for (int b = 0; b < bits; ++b) reversed |= ((i >> b) & 1) << (bits - 1 - b);
    p(n - 1 - i, reversed) = 1;  // rank i is the i-th column from the right
  }
  return p;
}

TEST(Composition, EqualsTheProductItIsNamedFor) {
  for (const int64_t n : {2, 16, 64, 128}) {
    const Matrix u = test::RandomOrthogonal(n, static_cast<uint64_t>(n));
    const std::vector<double> eigenvalues = test::GeometricSpectrum(n, 1e3);
    const Matrix h = RecursiveHadamard(n), p = ReversalMatrix(n);
    const std::map<std::string, Matrix> expected = {
        {"plain", u},           {"pbr", p},       {"br", u * p},          {"br_h128", u * p * h},
        {"r_h", u * h},         {"h_pbr", h * p}, {"h_r_pbr", h * u * p}, {"h_pbr_r", h * p * u},
        {"r_h_pbr", u * h * p}, {"hadamard", h}};
    ASSERT_EQ(expected.size(), CompositionTable().size());
    for (const auto& [name, product] : expected) {
      const Matrix r = Compose(CompositionFromName(name), u, eigenvalues);
      // Sums of n products of magnitude at most 1 / sqrt(n), two roundings each.
      const double bound =
          4 * std::sqrt(static_cast<double>(n)) * std::numeric_limits<double>::epsilon();
      EXPECT_LE((r - product).cwiseAbs().maxCoeff(), bound) << n << " " << name;
    }
  }
}

TEST(Composition, NamesComeFromOneTable) {
  for (const CompositionInfo& row : CompositionTable()) {
    EXPECT_EQ(CompositionName(row.id), row.name);
    EXPECT_EQ(CompositionFromName(row.name), row.id);
  }
  try {
    CompositionFromName("uresidual");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("r_h_pbr"));
  }
}

// Every head dim a model uses, power of two or not: orthogonal, the same each time, and the energy
// of the target spread over the channels.
TEST(Composition, ServesEveryHeadDim) {
  for (const int64_t n : kHeadDims) {
    const std::vector<double> spectrum = test::GeometricSpectrum(n, 1e3);
    // n Householder reflections leave an orthogonality error of about n eps.
    const Matrix u = test::RandomOrthogonal(n, static_cast<uint64_t>(n));
    const Eigen::Map<const Eigen::VectorXd> values(spectrum.data(), n);
    const Matrix target = u * values.asDiagonal() * u.transpose();
    for (const CompositionInfo& row : CompositionTable()) {
      const Matrix r = Compose(row.id, u, spectrum);
      EXPECT_LT(OrthogonalityError(r), 1e-12) << n << " " << row.name;
      EXPECT_EQ(r, Compose(row.id, u, spectrum)) << n << " " << row.name;
    }
    const Matrix r = Compose(Composition::kRHPbr, u, spectrum);
    const Eigen::VectorXd energy = (r.transpose() * target * r).diagonal();
    const double spread = energy.maxCoeff() / energy.mean();
    // Lemma 1 for powers of two; dealt blocks differ by less than one step of the spectrum for each
    // block (see linalg's test).
    const double blocks = static_cast<double>(n / HadamardBlock(n));
    const double step = std::pow(1e3, 1 / static_cast<double>(n - 1));
    EXPECT_LE(spread, blocks == 1 ? 1 + 1e-9 : std::pow(step, blocks)) << n;
  }
}

TEST(Composition, DealsEigenvectorsOverTheBlocksOfAnUnevenHeadDim) {
  const int64_t n = 96;
  const Matrix u = test::RandomOrthogonal(n, 1);
  const std::vector<double> spectrum = test::GeometricSpectrum(n, 1e3);
  const Matrix back = TimesHadamard(Compose(Composition::kRH, u, spectrum));
  for (int64_t p = 0; p < n; ++p) {
    const int64_t source = p % 32 * 3 + p / 32;
    EXPECT_LT((back.col(p) - u.col(source)).cwiseAbs().maxCoeff(), 1e-14) << p;
  }
}

// One flipped eigenvector leaves no column of U H what it was, not even up to sign; canonical signs
// undo any flip of a solver.
TEST(Composition, SignsOfEigenvectorsMatter) {
  const int64_t n = 16;
  const SymmetricEigen eigen =
      EighSymmetric(test::WithSpectrum(test::GeometricSpectrum(n, 1e3), 4));
  const Matrix r = Compose(Composition::kRH, eigen.vectors, eigen.values);
  Matrix flipped = eigen.vectors;
  flipped.col(5) *= -1;
  const Matrix other = Compose(Composition::kRH, flipped, eigen.values);
  int equal = 0;
  for (int64_t j = 0; j < n; ++j) {
    equal += (r.col(j) - other.col(j)).norm() < 1e-6 || (r.col(j) + other.col(j)).norm() < 1e-6;
  }
  EXPECT_EQ(equal, 0);
  Matrix canonical = eigen.vectors;
  MakeSignsCanonical(canonical);
  MakeSignsCanonical(flipped);
  EXPECT_EQ(Compose(Composition::kRHPbr, flipped, eigen.values),
            Compose(Composition::kRHPbr, canonical, eigen.values));
}

}  // namespace
}  // namespace oscar
