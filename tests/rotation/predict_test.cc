#include "oscar/rotation/predict.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oscar/linalg/eigh.h"
#include "rotation/layer_moments.h"

namespace oscar {
namespace {

using test::GeometricSpectrum;
using test::LayerWithMeans;
using test::WithSpectrum;

PredictedLoss Predict(const std::vector<Matrix>& means, Target target) {
  Matrix pooled = Matrix::Zero(means[0].rows(), means[0].cols());
  std::vector<Matrix> bases;
  for (const Matrix& mean : means) {
    pooled += mean;
    bases.push_back(EighSymmetric(mean).vectors);
  }
  return PredictLoss(LayerWithMeans(means, 1000), target, EighSymmetric(pooled).vectors, bases);
}

TEST(Predict, FourHeadsOfUnrelatedBasesWantRotationsOfTheirOwn) {
  for (const int64_t dim : {16, 64, 128}) {
    std::vector<Matrix> means;
    for (uint64_t h = 0; h < 4; ++h) {
      means.push_back(
          WithSpectrum(GeometricSpectrum(dim, 1e4), 10 * static_cast<uint64_t>(dim) + h));
    }
    for (const Target target :
         {Target::kQqt, Target::kKtk, Target::kSst, Target::kSvsv, Target::kVtv}) {
      const PredictedLoss loss = Predict(means, target);
      EXPECT_GT(loss.Ratio().value(), 10) << dim << " " << TargetName(target);
      EXPECT_TRUE(loss.signal_known);
    }
  }
}

TEST(Predict, IdenticalHeadsLoseNothingByASharedRotation) {
  const Matrix c = WithSpectrum(GeometricSpectrum(64, 1e4), 3);
  for (const Target target : {Target::kQqt, Target::kSst, Target::kSvsv}) {
    // Both bases are eigenvectors of the same matrix up to rounding.
    EXPECT_NEAR(Predict({c, c, c, c}, target).Ratio().value(), 1, 1e-9);
  }
}

// The bound by hand for a diagonal case, where U = I and U = a rotation by 45 degrees.
TEST(Predict, EqualsItsFormula) {
  Matrix cost(2, 2), signal(2, 2), turned(2, 2);
  cost << 1, 0, 0, 9;
  signal << 4, 0, 0, 16;
  const double s = std::sqrt(0.5);
  turned << s, -s, s, s;
  // 2^-4 * 2 * sqrt(1 * 9 * 4 * 16) / (1 * 4 + 9 * 16)
  EXPECT_NEAR(BasisLoss(Matrix::Identity(2, 2), cost, signal), 2.0 / 16 * 24 / 148, 1e-15);
  // Both diagonals become flat: 5, 5 and 10, 10.
  EXPECT_NEAR(BasisLoss(turned, cost, signal), 2.0 / 16 * 50 / 148, 1e-15);
}

TEST(Predict, IgnoresSignsAndOrderOfEigenvectors) {
  const Matrix c = WithSpectrum(GeometricSpectrum(16, 100), 1);
  const Matrix b = WithSpectrum(GeometricSpectrum(16, 100), 2);
  const Matrix u = EighSymmetric(WithSpectrum(GeometricSpectrum(16, 100), 3)).vectors;
  Matrix other = u.rowwise().reverse();
  other.col(3) *= -1;
  EXPECT_NEAR(BasisLoss(other, c, b), BasisLoss(u, c, b), 1e-14);
}

// Fischer's inequality: the product of the diagonal is least in the eigenbasis.
TEST(Predict, NoBasisBeatsTheEigenbasisOfTheCost) {
  const Matrix c = WithSpectrum(GeometricSpectrum(32, 1e3), 1);
  const Matrix identity = Matrix::Identity(32, 32);
  const double best = BasisLoss(EighSymmetric(c).vectors, c, identity);
  for (uint64_t seed = 100; seed < 120; ++seed) {
    EXPECT_GT(BasisLoss(test::RandomOrthogonal(32, seed), c, identity), best);
  }
}

// A head that leaves channels of its own basis empty would be taken to lose nothing.
TEST(Predict, SaysNothingOfHeadsThatDoNotReachTheirChannels) {
  const Matrix full = WithSpectrum(GeometricSpectrum(16, 100), 1);
  Matrix half = WithSpectrum(GeometricSpectrum(16, 100), 2);
  const Matrix u = EighSymmetric(half).vectors.rightCols(8);
  half = (u * u.transpose() * half * u * u.transpose()).eval();
  const PredictedLoss loss = Predict({full, half}, Target::kSst);
  EXPECT_FALSE(loss.bounded);
  EXPECT_EQ(loss.Ratio(), std::nullopt);
  EXPECT_TRUE(std::isfinite(loss.shared));
  EXPECT_TRUE(Predict({full, full}, Target::kSst).bounded);
  // Without any energy there is nothing to lose.
  const Matrix none = Matrix::Zero(16, 16), identity = Matrix::Identity(16, 16);
  const std::vector<Matrix> bases = {identity}, costs = {none};
  EXPECT_EQ(PredictLoss(identity, bases, costs, {}).Ratio(), 1);
  // One head has nothing to share.
  EXPECT_NEAR(Predict({half}, Target::kSst).Ratio().value(), 1, 1e-9);
  // A shared basis with a channel that one head does not reach.
  Matrix one = Matrix::Identity(16, 16);
  one(0, 0) = 0;
  const std::vector<Matrix> two = {full, one};
  const std::vector<Matrix> own = {EighSymmetric(full).vectors, EighSymmetric(full).vectors};
  EXPECT_FALSE(PredictLoss(identity, own, two, {}).bounded);
}

TEST(Predict, SurvivesMissingAndDegenerateSignals) {
  const Matrix c = WithSpectrum(GeometricSpectrum(16, 100), 1);
  const Matrix other = WithSpectrum(GeometricSpectrum(16, 100), 2);
  LayerMoments moments = LayerWithMeans({c, other}, 1000);
  moments.sums.erase(Moment::kKk);
  const Matrix u = EighSymmetric(c).vectors;
  const std::vector<Matrix> bases = {u, EighSymmetric(other).vectors};
  const PredictedLoss without = PredictLoss(moments, Target::kQqt, u, bases);
  EXPECT_FALSE(without.signal_known);
  EXPECT_GT(without.Ratio().value(), 1);
  Matrix flat = Matrix::Zero(16, 16);
  flat(0, 0) = 1;
  EXPECT_TRUE(std::isfinite(BasisLoss(u, c, flat)));
  EXPECT_GT(BasisLoss(u, c, flat), 0);
  EXPECT_EQ(BasisLoss(u, c, Matrix::Zero(16, 16)), 0);
}

}  // namespace
}  // namespace oscar
