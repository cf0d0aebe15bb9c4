// What a rotation shared by all KV heads is predicted to cost against one rotation per head.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "oscar/linalg/matrix.h"
#include "oscar/stats/moments.h"

namespace oscar {

// Relative squared error of the quantity the target protects (logits for keys, outputs for values).
struct PredictedLoss {
  double shared = 0;
  double per_head = 0;
  // `kk` or `vv` was there; without it all channels are taken to hold equal energy.
  bool signal_known = false;
  // Neither basis of any head has a channel that costs or rows do not reach, or there is one head.
  // Such a channel takes no bits, with it the bound is 0, and no multiple of it says what a shared
  // basis costs.
  bool bounded = true;

  // Shared over per head; 1 without any energy, nothing where the loss is not bounded.
  std::optional<double> Ratio() const {
    if (!bounded) return std::nullopt;
    return per_head > 0 ? shared / per_head : 1;
  }
};

// Loss of one head in the basis U. With C [D, D] what an error costs and B [D, D] the second moment
// of the head's rows, error e in a row costs e C e^T; a b-bit quantiser of channel j of x U leaves
// noise of variance 2^(-2 b) (U^T B U)_jj, and the best split of b D bits over the channels gives
//   L(U) = 2^(-2 b) D (prod_j (U^T C U)_jj (U^T B U)_jj)^(1/D) / tr(C B),  b = 2:
// the transform-coding bound of the basis, relative to the energy tr(C B) of what is protected.
// It ranks bases: it knows neither clipping nor that one scale serves a whole row, so it is no
// forecast of a measured error. L does not depend on signs or order of the columns of U.
double BasisLoss(const Matrix& basis, const Matrix& cost, const Matrix& signal);

// Means over heads of the loss in `shared_basis` and in each head's own basis. `costs` and
// `signals` [H_kv] are per head; empty `signals` mean identity.
PredictedLoss PredictLoss(const Matrix& shared_basis, std::span<const Matrix> head_bases,
                          std::span<const Matrix> costs, std::span<const Matrix> signals);

// The same with costs and signals from a layer's moments: the target of each KV head, and `kk` or
// `vv` where the moments have it. Throws Error(kData / kNumeric) as FormTargets does.
PredictedLoss PredictLoss(const LayerMoments& moments, Target target, const Matrix& shared_basis,
                          std::span<const Matrix> head_bases);

}  // namespace oscar
