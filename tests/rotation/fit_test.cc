#include "oscar/rotation/fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/permutation.h"
#include "rotation/layer_moments.h"

namespace oscar {
namespace {

using test::GeometricSpectrum;
using test::LayerFromRows;
using test::LayerWithMeans;
using test::WithSpectrum;
using testing::AllOf;
using testing::HasSubstr;

struct Failure {
  ErrorCode code = ErrorCode::kUsage;
  std::string message;
  std::string hint;
};

Failure FailureOf(const LayerMoments& moments, Target target, Grouping grouping,
                  const FitOptions& options = {}) {
  try {
    FitSide(moments, 7, target, grouping, options);
  } catch (const Error& error) {
    return {error.code(), error.what(), error.hint()};
  }
  ADD_FAILURE() << "no error";
  return {};
}

// R as doubles.
Matrix StoredRotation(const RotationFit& fit, int64_t dim) {
  Matrix r(dim, dim);
  for (int64_t i = 0; i < dim * dim; ++i) {
    r.data()[i] = static_cast<double>(fit.stored[static_cast<size_t>(i)]);
  }
  return r;
}

// From the file back to the eigenvectors: U = R P^T H. U^T C U is diagonal with the eigenvalues.
TEST(Fit, TheFileGivesItsEigenvectorsBack) {
  for (const int64_t dim : {16, 64, 128, 256}) {
    const Matrix c = WithSpectrum(GeometricSpectrum(dim, 1e4), static_cast<uint64_t>(dim));
    const SideFit side =
        FitSide(LayerWithMeans({c}, 100000), 0, Target::kQqt, Grouping::kLayer, {});
    const RotationFit& fit = side.rotations.at(0);
    std::vector<int64_t> inverse(static_cast<size_t>(dim));
    const std::vector<int64_t> perm = OfficialPermutation(fit.eigen.values);
    for (int64_t j = 0; j < dim; ++j) {
      inverse[static_cast<size_t>(perm[static_cast<size_t>(j)])] = j;
    }
    const Matrix u = TimesHadamard(PermuteColumns(StoredRotation(fit, dim), inverse));
    Matrix off = u.transpose() * c * u;
    const double largest = fit.eigen.values.back();
    for (int64_t j = 0; j < dim; ++j) {
      // A column of U carries the float32 rounding of R, at most 2^-24 in norm; to first order the
      // Rayleigh quotient moves by 2 * 2^-24 * lambda.
      EXPECT_NEAR(off(j, j), fit.eigen.values[static_cast<size_t>(j)],
                  2.1 * std::ldexp(1.0, -24) * largest);
      off(j, j) = 0;
    }
    EXPECT_LT(off.cwiseAbs().maxCoeff() / c.norm(), 1e-8) << dim;
    // Another matrix of the same spectrum is not diagonalised.
    const Matrix other = WithSpectrum(GeometricSpectrum(dim, 1e4), 777);
    Matrix mixed = u.transpose() * other * u;
    mixed.diagonal().setZero();
    EXPECT_GT(mixed.norm() / other.norm(), 0.1);
  }
}

TEST(Fit, RecordsWhatItMeasured) {
  const Matrix c = WithSpectrum(GeometricSpectrum(64, 1e3), 5);
  const SideFit side = FitSide(LayerWithMeans({c}, 1000), 3, Target::kKtk, Grouping::kLayer, {});
  EXPECT_EQ(side.dim, 64);
  EXPECT_EQ(side.tokens, 1000U);
  const RotationFit& fit = side.rotations.at(0);
  EXPECT_EQ(fit.rank, 64);
  EXPECT_LT(fit.eigen.residual_units, 10);
  EXPECT_GT(fit.orthogonality.as_stored, 0);
  EXPECT_LT(fit.orthogonality.as_stored, 1.3e-7);
  EXPECT_LT(fit.orthogonality.as_served, 4e-3);
  EXPECT_EQ(fit.target_sha256.size(), 64U);
  EXPECT_TRUE(std::is_sorted(fit.eigen.values.begin(), fit.eigen.values.end()));
}

TEST(Fit, OneRotationPerHeadIsTheLayerFitOfThatHead) {
  std::vector<Matrix> means;
  for (uint64_t h = 0; h < 3; ++h) means.push_back(WithSpectrum(GeometricSpectrum(32, 50), h));
  for (const Target target :
       {Target::kQqt, Target::kKtk, Target::kSst, Target::kSvsv, Target::kVtv}) {
    const SideFit heads = FitSide(LayerWithMeans(means, 5000), 0, target, Grouping::kHead, {});
    ASSERT_EQ(heads.rotations.size(), 3U);
    for (size_t h = 0; h < 3; ++h) {
      const SideFit alone =
          FitSide(LayerWithMeans({means[h]}, 5000), 0, target, Grouping::kLayer, {});
      EXPECT_EQ(heads.rotations[h].stored, alone.rotations.at(0).stored);
    }
  }
}

TEST(Fit, BothGroupingsAreFittedWhicheverIsAskedFor) {
  std::vector<Matrix> means;
  for (uint64_t h = 0; h < 4; ++h) means.push_back(WithSpectrum(GeometricSpectrum(16, 1e4), h));
  const LayerMoments moments = LayerWithMeans(means, 5000);
  const BothFits layer = FitBoth(moments, 0, Target::kQqt, Grouping::kLayer, {});
  const BothFits head = FitBoth(moments, 0, Target::kQqt, Grouping::kHead, {});
  ASSERT_EQ(layer.other.size(), 4U);
  ASSERT_EQ(head.other.size(), 1U);
  EXPECT_EQ(head.other[0], layer.chosen.rotations.at(0).stored);
  for (size_t h = 0; h < 4; ++h) EXPECT_EQ(layer.other[h], head.chosen.rotations.at(h).stored);
  EXPECT_EQ(layer.predicted.shared, head.predicted.shared);
  EXPECT_EQ(layer.predicted.per_head, head.predicted.per_head);
  EXPECT_GT(layer.predicted.Ratio().value(), 10);
  // One head: nothing to choose.
  const BothFits single =
      FitBoth(LayerWithMeans({means[0]}, 5000), 0, Target::kQqt, Grouping::kLayer, {});
  EXPECT_TRUE(single.other.empty());
  EXPECT_NEAR(single.predicted.Ratio().value(), 1, 1e-12);
}

TEST(Fit, SolverSignsDifferFromCanonicalOnesByColumnSignsOnly) {
  const LayerMoments moments = LayerWithMeans({WithSpectrum(GeometricSpectrum(32, 50), 8)}, 5000);
  FitOptions options;
  options.composition = Composition::kPlain;
  const Matrix canonical = StoredRotation(
      FitSide(moments, 0, Target::kQqt, Grouping::kLayer, options).rotations.at(0), 32);
  options.signs = SignRule::kSolver;
  const Matrix solver = StoredRotation(
      FitSide(moments, 0, Target::kQqt, Grouping::kLayer, options).rotations.at(0), 32);
  for (int64_t j = 0; j < 32; ++j) {
    Eigen::Index largest = 0;
    canonical.col(j).cwiseAbs().maxCoeff(&largest);
    EXPECT_GT(canonical(largest, j), 0);
    EXPECT_TRUE(solver.col(j) == canonical.col(j) || solver.col(j) == -canonical.col(j));
  }
}

// A dump that caught 12 tokens: 4 heads x 12 rows span 48 of 128 dimensions.
TEST(Gates, RefusesAHandfulOfTokensAndAcceptsEnough) {
  const LayerMoments few = LayerFromRows(4, 128, 12, 1);
  const Failure failure = FailureOf(few, Target::kVtv, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("layer 7"), HasSubstr("values (vtv)"), HasSubstr("12 tokens"),
                    HasSubstr("1280"), HasSubstr("rank 48")));
  EXPECT_THAT(failure.hint, HasSubstr("--min-tokens-per-dim"));
  const LayerMoments enough = LayerFromRows(4, 128, 2000, 1);
  EXPECT_EQ(FitSide(enough, 7, Target::kVtv, Grouping::kLayer, {}).rotations.at(0).rank, 128);
}

TEST(Gates, TheTokenFloorIsExactAndCanBeLowered) {
  const LayerMoments below = LayerFromRows(1, 16, 159, 1);
  EXPECT_THAT(FailureOf(below, Target::kQqt, Grouping::kLayer).message, HasSubstr("159 tokens"));
  EXPECT_NO_THROW(FitSide(LayerFromRows(1, 16, 160, 1), 0, Target::kQqt, Grouping::kLayer, {}));
  FitOptions options;
  options.gates.min_tokens_per_dim = 0;
  EXPECT_NO_THROW(FitSide(below, 0, Target::kQqt, Grouping::kLayer, options));
}

TEST(Gates, RefusesRankDeficiencyWhateverTheTokenCount) {
  std::vector<double> spectrum = GeometricSpectrum(32, 50);
  spectrum[0] = spectrum[1] = 0;
  const Matrix flat = WithSpectrum(spectrum, 2);
  const Failure failure = FailureOf(LayerWithMeans({flat}, 100000), Target::kQqt, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message,
              AllOf(HasSubstr("layer 7"), HasSubstr("rank 30"), HasSubstr("32 expected")));
  // One starved head of a per-head fit is named; pooled with a healthy head it would hide.
  const Matrix healthy = WithSpectrum(GeometricSpectrum(32, 50), 3);
  const LayerMoments two = LayerWithMeans({healthy, flat}, 100000);
  EXPECT_NO_THROW(FitSide(two, 7, Target::kQqt, Grouping::kLayer, {}));
  EXPECT_THAT(FailureOf(two, Target::kQqt, Grouping::kHead).message, HasSubstr("KV head 1"));
}

TEST(Gates, RefusesLayersThatSawNothing) {
  const Matrix c = WithSpectrum(GeometricSpectrum(16, 50), 2);
  LayerMoments none = LayerWithMeans({c}, 100000);
  none.count = 0;
  Failure failure = FailureOf(none, Target::kQqt, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("layer 7"), HasSubstr("no tokens")));
  failure =
      FailureOf(LayerWithMeans({Matrix::Zero(16, 16)}, 100000), Target::kQqt, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("layer 7"), HasSubstr("the target is 0")));
}

TEST(Gates, NamesMissingAndUnusableMoments) {
  const Matrix c = WithSpectrum(GeometricSpectrum(16, 50), 2);
  LayerMoments moments = LayerWithMeans({c}, 100000);
  moments.sums.erase(Moment::kOo);
  Failure failure = FailureOf(moments, Target::kSvsv, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kData);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("layer 7"), HasSubstr("oo")));
  moments = LayerWithMeans({c}, 100000);
  moments.sums[Moment::kQq].data[5] = std::nan("");
  failure = FailureOf(moments, Target::kQqt, Grouping::kLayer);
  EXPECT_EQ(failure.code, ErrorCode::kNumeric);
  EXPECT_THAT(failure.message, AllOf(HasSubstr("layer 7"), HasSubstr("nan")));
}

TEST(Gates, EveryMeasureCanFail) {
  const LayerMoments moments = LayerWithMeans({WithSpectrum(GeometricSpectrum(64, 50), 2)}, 100000);
  const auto message = [&](double FitGates::*gate) {
    FitOptions options;
    options.gates.*gate = 1e-30;
    const Failure failure = FailureOf(moments, Target::kQqt, Grouping::kLayer, options);
    EXPECT_EQ(failure.code, ErrorCode::kNumeric);
    EXPECT_THAT(failure.message, HasSubstr("layer 7, keys (qqt)"));
    return failure.message;
  };
  EXPECT_THAT(message(&FitGates::max_residual_units), HasSubstr("residual"));
  EXPECT_THAT(message(&FitGates::max_basis_error), HasSubstr("U^T U"));
  EXPECT_THAT(message(&FitGates::max_stored_error), HasSubstr("float32"));
  EXPECT_THAT(message(&FitGates::max_served_error), HasSubstr("bfloat16"));
}

TEST(Fit, HadamardNeedsNoData) {
  for (const int64_t dim : {64, 96, 128}) {
    const RotationFit fit = FitHadamard(dim, 0, {});
    EXPECT_EQ(fit.eigen.values, std::vector<double>(static_cast<size_t>(dim), 1.0));
    EXPECT_EQ(StoredRotation(fit, dim), StoredRotation(fit, dim).transpose());
  }
}

}  // namespace
}  // namespace oscar
