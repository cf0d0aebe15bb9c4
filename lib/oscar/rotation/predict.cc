#include "oscar/rotation/predict.h"

#include <cmath>
#include <limits>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr int kBits = 2;

// sum_j ln (U^T A U)_jj. Entries below what float64 can tell from 0 count as that limit.
double LogDiagonal(const Matrix& basis, const Matrix& a) {
  const double limit = static_cast<double>(a.rows()) * std::numeric_limits<double>::epsilon() *
                       std::max(a.trace(), std::numeric_limits<double>::min());
  const Matrix product = a * basis;
  double sum = 0;
  for (Eigen::Index j = 0; j < basis.cols(); ++j) {
    sum += std::log(std::max(basis.col(j).dot(product.col(j)), limit));
  }
  return sum;
}

}  // namespace

double BasisLoss(const Matrix& basis, const Matrix& cost, const Matrix& signal) {
  const auto dim = static_cast<double>(basis.cols());
  const double energy = cost.cwiseProduct(signal).sum();  // tr(C B), both symmetric
  if (energy <= 0) return 0;
  const double mean_log = (LogDiagonal(basis, cost) + LogDiagonal(basis, signal)) / dim;
  return std::exp(mean_log - 2 * kBits * std::log(2.0)) * dim / energy;
}

PredictedLoss PredictLoss(const Matrix& shared_basis, std::span<const Matrix> head_bases,
                          std::span<const Matrix> costs, std::span<const Matrix> signals) {
  OSCAR_CHECK(!costs.empty() && head_bases.size() == costs.size());
  OSCAR_CHECK(signals.empty() || signals.size() == costs.size());
  PredictedLoss loss;
  loss.signal_known = !signals.empty();
  const Matrix identity = Matrix::Identity(shared_basis.rows(), shared_basis.cols());
  for (size_t h = 0; h < costs.size(); ++h) {
    const Matrix& signal = signals.empty() ? identity : signals[h];
    loss.shared += BasisLoss(shared_basis, costs[h], signal);
    loss.per_head += BasisLoss(head_bases[h], costs[h], signal);
  }
  loss.shared /= static_cast<double>(costs.size());
  loss.per_head /= static_cast<double>(costs.size());
  return loss;
}

PredictedLoss PredictLoss(const LayerMoments& moments, Target target, const Matrix& shared_basis,
                          std::span<const Matrix> head_bases) {
  const std::vector<Matrix> costs = FormTargets(moments, target, Grouping::kHead);
  const Target plain = IsKeyTarget(target) ? Target::kKtk : Target::kVtv;
  std::vector<Matrix> signals;
  if (moments.Has(MomentOf(plain))) signals = FormTargets(moments, plain, Grouping::kHead);
  return PredictLoss(shared_basis, head_bases, costs, signals);
}

}  // namespace oscar
