#include "oscar/rotation/predict.h"

#include <cmath>
#include <limits>

#include "oscar/core/error.h"

namespace oscar {
namespace {

constexpr int kBits = 2;

// (U^T A U)_jj. Entries below what float64 can tell from 0 are that limit.
struct Diagonal {
  Eigen::ArrayXd entries;
  bool positive;  // none of them is

  Diagonal(const Matrix& basis, const Matrix& a) {
    const double limit = static_cast<double>(a.rows()) * std::numeric_limits<double>::epsilon() *
                         std::max(a.trace(), std::numeric_limits<double>::min());
    entries = basis.cwiseProduct(a * basis).colwise().sum().transpose().array();
    positive = entries.minCoeff() > limit;
    entries = entries.max(limit);
  }
};

struct Loss {
  double value = 0;
  // Every channel of the basis takes bits, or none as there is nothing to lose.
  bool bounded = true;
};

Loss LossOf(const Matrix& basis, const Matrix& cost, const Matrix& signal) {
  const auto dim = static_cast<double>(basis.cols());
  const double energy = cost.cwiseProduct(signal).sum();  // tr(C B), both symmetric
  if (energy <= 0) return {};
  const Diagonal costs(basis, cost), signals(basis, signal);
  const double mean_log = (costs.entries.log().sum() + signals.entries.log().sum()) / dim;
  return {std::exp(mean_log - 2 * kBits * std::log(2.0)) * dim / energy,
          costs.positive && signals.positive};
}

}  // namespace

double BasisLoss(const Matrix& basis, const Matrix& cost, const Matrix& signal) {
  return LossOf(basis, cost, signal).value;
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
    const Loss shared = LossOf(shared_basis, costs[h], signal);
    const Loss own = LossOf(head_bases[h], costs[h], signal);
    loss.shared += shared.value;
    loss.per_head += own.value;
    loss.bounded = loss.bounded && (costs.size() == 1 || (shared.bounded && own.bounded));
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
