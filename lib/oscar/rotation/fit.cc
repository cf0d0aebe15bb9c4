#include "oscar/rotation/fit.h"

#include <fmt/format.h>

#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"

namespace oscar {
namespace {

// "layer 7, values (sst), KV head 2": where in every message.
struct Place {
  int layer;
  std::string side;
  std::string head;

  std::string Text() const { return fmt::format("layer {}, {}{}", layer, side, head); }
  [[noreturn]] void Fail(ErrorCode code, const std::string& what, std::string hint = "") const {
    throw Error(code, fmt::format("{}: {}", Text(), what), std::move(hint));
  }
};

Place PlaceOf(int layer, Target target) {
  return {layer,
          fmt::format("{} ({})", IsKeyTarget(target) ? "keys" : "values", TargetName(target)), ""};
}

constexpr const char* kMoreText = "calibrate on more text: oscar-dump --tokens";

// Runs `body`, naming the place in whatever goes wrong.
template <typename Body>
auto At(const Place& place, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    place.Fail(error.code(), error.what(), error.hint());
  }
}

// Not `value > gate`: a NaN must not pass.
void CheckGate(const Place& place, const char* what, double value, double gate) {
  if (value <= gate) return;
  place.Fail(ErrorCode::kNumeric,
             fmt::format("{} is {:.3g}, at most {:.3g} expected", what, value, gate));
}

void CheckTokensAndRank(const Place& place, uint64_t tokens, int64_t rank, int64_t dim,
                        const FitGates& gates) {
  const double floor = gates.min_tokens_per_dim * static_cast<double>(dim);
  if (static_cast<double>(tokens) < floor) {
    place.Fail(ErrorCode::kData,
               fmt::format("{} tokens are too few for head_dim {}: at least {:.0f} ({:g} per "
                           "channel) expected; numerical rank {}",
                           tokens, dim, std::ceil(floor), gates.min_tokens_per_dim, rank),
               fmt::format("{}; --min-tokens-per-dim lowers the floor", kMoreText));
  }
  if (rank < dim) {
    place.Fail(
        ErrorCode::kData,
        fmt::format("{} tokens give a target of numerical rank {}, {} expected", tokens, rank, dim),
        kMoreText);
  }
}

void FinishRotation(const Place& place, const Matrix& rotation, const FitGates& gates,
                    RotationFit& fit) {
  fit.stored = RoundToFloat(rotation);
  fit.orthogonality = MeasureStoredOrthogonality(fit.stored, rotation.rows());
  CheckGate(place, "max |R^T R - I| in float32", fit.orthogonality.as_stored,
            gates.max_stored_error);
  CheckGate(place, "max |R^T R - I| in bfloat16", fit.orthogonality.as_served,
            gates.max_served_error);
}

RotationFit FitOne(const Place& place, const Matrix& target, uint64_t tokens,
                   const FitOptions& options) {
  if ((target.array() == 0).all()) {
    place.Fail(ErrorCode::kData, "the target is 0: nothing was observed", kMoreText);
  }
  RotationFit fit;
  fit.eigen = At(place, [&] { return EighSymmetric(target); });
  fit.rank = NumericalRank(fit.eigen.values);
  CheckTokensAndRank(place, tokens, fit.rank, target.rows(), options.gates);
  CheckGate(place, "eigen residual / (D eps)", fit.eigen.residual_units,
            options.gates.max_residual_units);
  CheckGate(place, "max |U^T U - I|", fit.eigen.orthogonality, options.gates.max_basis_error);
  if (options.signs == SignRule::kCanonical) MakeSignsCanonical(fit.eigen.vectors);
  FinishRotation(place, Compose(options.composition, fit.eigen.vectors, fit.eigen.values),
                 options.gates, fit);
  fit.target_sha256 = Sha256Hex(target.data(), static_cast<size_t>(target.size()) * sizeof(double));
  return fit;
}

}  // namespace

SideFit FitSide(const LayerMoments& moments, int layer, Target target, Grouping grouping,
                const FitOptions& options) {
  Place place = PlaceOf(layer, target);
  if (moments.count == 0) {
    place.Fail(ErrorCode::kData, "no tokens were observed", kMoreText);
  }
  const std::vector<Matrix> targets =
      At(place, [&] { return FormTargets(moments, target, grouping); });
  SideFit side;
  side.target = target;
  side.grouping = grouping;
  side.dim = targets.front().rows();
  side.tokens = moments.count;
  for (size_t head = 0; head < targets.size(); ++head) {
    if (grouping == Grouping::kHead) place.head = fmt::format(", KV head {}", head);
    side.rotations.push_back(FitOne(place, targets[head], moments.count, options));
  }
  return side;
}

BothFits FitBoth(const LayerMoments& moments, int layer, Target target, Grouping grouping,
                 const FitOptions& options) {
  BothFits both;
  both.chosen = FitSide(moments, layer, target, grouping, options);
  const Grouping other = grouping == Grouping::kLayer ? Grouping::kHead : Grouping::kLayer;
  std::vector<Matrix> chosen_bases, other_bases;
  for (const RotationFit& fit : both.chosen.rotations) chosen_bases.push_back(fit.eigen.vectors);
  const Place place = PlaceOf(layer, target);
  for (const Matrix& matrix : FormTargets(moments, target, other)) {
    SymmetricEigen eigen = At(place, [&] { return EighSymmetricUnchecked(matrix); });
    if (options.signs == SignRule::kCanonical) MakeSignsCanonical(eigen.vectors);
    if (moments.shape.kv_heads > 1) {
      both.other.push_back(RoundToFloat(Compose(options.composition, eigen.vectors, eigen.values)));
    }
    other_bases.push_back(std::move(eigen.vectors));
  }
  const bool shared_chosen = grouping == Grouping::kLayer;
  both.predicted = PredictLoss(moments, target, shared_chosen ? chosen_bases[0] : other_bases[0],
                               shared_chosen ? other_bases : chosen_bases);
  return both;
}

RotationFit FitHadamard(int64_t dim, int layer, const FitGates& gates) {
  RotationFit fit;
  fit.eigen.values.assign(static_cast<size_t>(dim), 1.0);
  fit.eigen.vectors = Matrix::Identity(dim, dim);
  fit.rank = dim;
  FinishRotation({layer, "hadamard", ""},
                 Compose(Composition::kHadamard, fit.eigen.vectors, fit.eigen.values), gates, fit);
  return fit;
}

}  // namespace oscar
