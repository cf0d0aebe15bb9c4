// Rotations of one layer from its moments, and the gates a rotation passes before it is written.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/linalg/eigh.h"
#include "oscar/linalg/orthogonality.h"
#include "oscar/rotation/composition.h"
#include "oscar/rotation/predict.h"
#include "oscar/stats/moments.h"

namespace oscar {

// Signs of eigenvectors: largest |entry| positive, or as the solver leaves them. After H the sign
// of one eigenvector changes most columns of the rotation, so only canonical signs make rotations
// of different machines comparable.
enum class SignRule { kCanonical, kSolver };

// Limits that turn a bad fit into an error.
struct FitGates {
  // Tokens per channel of the head. A second moment of fewer than 10 D tokens has eigenvectors
  // that depend on the sample more than on the model. 0 switches the floor off.
  double min_tokens_per_dim = 10;
  // Eigen residual |A U - U L|_F / |A|_F in units of D eps. Backward stable solvers stay below 1;
  // LAPACK's own tests call 30 a failure.
  double max_residual_units = 10;
  // max |R^T R - I| in float64: of U, of R in float32, of R in bfloat16. An entry is off by at most
  // u |r|, a product of two unit rows by 2 u: 1.2e-7 and 3.9e-3. The gates leave room above that.
  double max_basis_error = 1e-12;
  double max_stored_error = 1e-5;
  double max_served_error = 5e-3;
};

struct FitOptions {
  Composition composition = Composition::kRHPbr;
  SignRule signs = SignRule::kCanonical;
  FitGates gates;
};

// One rotation with everything that was measured on the way.
struct RotationFit {
  SymmetricEigen eigen;       // of the target; eigenvectors with the chosen signs
  int64_t rank = 0;           // numerical rank of the target
  std::vector<float> stored;  // R [D, D], row-major, rounded from float64 at the very end
  StoredOrthogonality orthogonality;
  std::string target_sha256;  // of the target matrix, float64 row-major
};

// Keys or values of one layer.
struct SideFit {
  Target target = Target::kQqt;
  Grouping grouping = Grouping::kLayer;
  int64_t dim = 0;
  uint64_t tokens = 0;
  std::vector<RotationFit> rotations;  // one for kLayer, H_kv for kHead
};

// Fits one side of one layer. `layer` is the model's layer number, for messages. Throws
//   Error(kData)     no token observed, the moment is absent, the target is 0, fewer tokens than
//                    the floor or a rank below D (the message has layer, tokens and rank),
//   Error(kNumeric)  a moment that is not finite, a solver failure, a measure above its gate.
SideFit FitSide(const LayerMoments& moments, int layer, Target target, Grouping grouping,
                const FitOptions& options);

// The fit that was asked for beside the other grouping, which is only compared with.
struct BothFits {
  SideFit chosen;
  // Rotations of the other grouping, float32 [D, D] each; empty when there is one KV head.
  std::vector<std::vector<float>> other;
  PredictedLoss predicted;
};

// FitSide, and the other grouping without gates. Errors as FitSide.
BothFits FitBoth(const LayerMoments& moments, int layer, Target target, Grouping grouping,
                 const FitOptions& options);

// The data-free rotation of a side: H for every head, eigenvalues 1, gates on orthogonality.
RotationFit FitHadamard(int64_t dim, int layer, const FitGates& gates);

}  // namespace oscar
