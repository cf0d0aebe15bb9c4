// Random matrices for tests, seeded.
#pragma once

#include <Eigen/Dense>
#include <cmath>
#include <vector>

#include "oscar/core/random.h"
#include "oscar/linalg/matrix.h"

namespace oscar::test {

inline Matrix RandomNormal(int64_t rows, int64_t cols, uint64_t seed) {
  Random random(seed);
  Matrix result(rows, cols);
  for (Eigen::Index i = 0; i < result.size(); ++i) result.data()[i] = random.Normal();
  return result;
}

// Orthogonal [dim, dim]: the Q factor of a normal matrix (Eigen's Householder QR, not LAPACK).
inline Matrix RandomOrthogonal(int64_t dim, uint64_t seed) {
  const Eigen::MatrixXd normal = RandomNormal(dim, dim, seed);
  return Eigen::HouseholderQR<Eigen::MatrixXd>(normal).householderQ() *
         Eigen::MatrixXd::Identity(dim, dim);
}

// Q diag(spectrum) Q^T, exactly symmetric.
inline Matrix WithSpectrum(const std::vector<double>& spectrum, uint64_t seed) {
  const auto dim = static_cast<int64_t>(spectrum.size());
  const Matrix q = RandomOrthogonal(dim, seed);
  const Eigen::Map<const Eigen::VectorXd> values(spectrum.data(), dim);
  const Matrix product = q * values.asDiagonal() * q.transpose();
  return 0.5 * (product + product.transpose());
}

// dim values from 1 to `range`, evenly spaced in the logarithm, ascending.
inline std::vector<double> GeometricSpectrum(int64_t dim, double range) {
  std::vector<double> values(static_cast<size_t>(dim));
  for (int64_t i = 0; i < dim; ++i) {
    values[static_cast<size_t>(i)] = std::pow(
        range, static_cast<double>(i) / static_cast<double>(std::max<int64_t>(dim - 1, 1)));
  }
  return values;
}

}  // namespace oscar::test
