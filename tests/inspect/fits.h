// Rotations fitted to known second moments, with Eigen's solver rather than LAPACK.
#pragma once

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "oscar/rotation/composition.h"
#include "oscar/stats/moments.h"
#include "oscar/zoo/entry.h"

namespace oscar::test {

// A [dim, dim] second moment with eigenvalues spread over three decades.
inline Matrix RandomMoment(int64_t dim, uint32_t seed) {
  std::mt19937 generator(seed);
  Matrix a(dim, dim);
  for (Eigen::Index i = 0; i < a.size(); ++i) {
    a.data()[i] = static_cast<double>(generator()) / 4294967296.0 - 0.5;
  }
  for (Eigen::Index j = 0; j < dim; ++j) {
    a.col(j) *= std::pow(10.0, 1.5 * static_cast<double>(j) / static_cast<double>(dim));
  }
  return a * a.transpose();
}

struct Fit {
  Matrix basis;  // ascending eigenvalues
  std::vector<double> eigenvalues;
};

inline Fit FitMoment(const Matrix& moment) {
  const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver{Eigen::MatrixXd(moment)};
  Fit fit{solver.eigenvectors(), {}};
  fit.eigenvalues.assign(solver.eigenvalues().data(),
                         solver.eigenvalues().data() + solver.eigenvalues().size());
  return fit;
}

inline std::vector<float> Floats(const Matrix& matrix) {
  std::vector<float> values;
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    values.push_back(static_cast<float>(matrix.data()[i]));
  }
  return values;
}

inline ZooLayer LayerFrom(const Fit& fit, const std::string& composition) {
  ZooLayer layer;
  layer.dim = fit.basis.rows();
  layer.rotation = Floats(Compose(CompositionFromName(composition), fit.basis, fit.eigenvalues));
  layer.eigenvalues.assign(fit.eigenvalues.begin(), fit.eigenvalues.end());
  return layer;
}

// Flips the sign of some eigenvectors, as another solver might.
inline Fit WithFlippedSigns(Fit fit, uint32_t seed) {
  std::mt19937 generator(seed);
  for (Eigen::Index j = 0; j < fit.basis.cols(); ++j) {
    if (generator() % 2 == 0) fit.basis.col(j) *= -1;
  }
  return fit;
}

inline ZooFile FileOf(const std::string& objective, std::map<int64_t, ZooLayer> layers) {
  ZooFile file;
  file.objective = objective;
  file.source_grouping = "layer";
  file.layers = std::move(layers);
  return file;
}

}  // namespace oscar::test
