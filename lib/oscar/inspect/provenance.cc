#include "oscar/inspect/provenance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/inspect/objective.h"

namespace oscar {
namespace {

// Rounding R changes U by E with |E|_2 <= u |R|_F = u sqrt(D), and U^T C U by at most 2 |E|_2
// |C|_F; another factor of two is left for the solver that made the file.
double Tolerance(const ZooLayer& layer) {
  return 4 * RoundoffOf(layer.stored_as) * std::sqrt(static_cast<double>(layer.dim));
}

ProvenanceResult Compare(const ZooLayer& layer, const Matrix& basis, const Matrix& target) {
  ProvenanceResult result;
  const Matrix rotated = basis.transpose() * target * basis;
  const double norm = target.norm();
  if (!(norm > 0)) {
    result.reason = "the target of the trace is zero";
    return result;
  }
  const Eigen::VectorXd diagonal = rotated.diagonal();
  Matrix rest = rotated;
  rest.diagonal().setZero();
  result.off_diagonal = rest.norm() / norm;
  result.tolerance = Tolerance(layer);
  // A random basis gives every diagonal entry near trace / D.
  const double mean_part = target.trace() * target.trace() / static_cast<double>(layer.dim);
  const double total = norm * norm - mean_part;
  result.alignment = total > 1e-12 * norm * norm
                         ? std::max(0.0, (diagonal.squaredNorm() - mean_part) / total)
                         : 1.0;
  result.verdict = result.off_diagonal <= result.tolerance ? ProvenanceVerdict::kFits
                                                           : ProvenanceVerdict::kOther;
  if (result.verdict == ProvenanceVerdict::kOther) result.reason = "other model or other data";
  if (layer.eigenvalues.empty()) return result;
  // The order of columns is no part of the question.
  std::vector<double> found(diagonal.data(), diagonal.data() + diagonal.size());
  std::sort(found.begin(), found.end());
  result.eigenvalue_error = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double off = std::abs(found[i] - static_cast<double>(layer.eigenvalues[i]));
    result.eigenvalue_error = std::max(result.eigenvalue_error, off / norm);
  }
  if (result.verdict == ProvenanceVerdict::kFits && result.eigenvalue_error > result.tolerance) {
    result.verdict = ProvenanceVerdict::kOther;
    result.reason = "the basis fits, the eigenvalues do not: other data or another normalisation";
  }
  return result;
}

class Checker {
 public:
  Checker(const ZooFile& file, ZooSide side, const TraceSet& traces)
      : file_(file), traces_(traces), objective_(ParseObjective(file.objective, side)) {}

  std::vector<ProvenanceResult> Layer(int64_t id, const ZooLayer& layer) const {
    if (!objective_.target) return Unknown(id, "the objective names no target");
    if (id > std::numeric_limits<int>::max() ||
        std::find(traces_.layers().begin(), traces_.layers().end(), static_cast<int>(id)) ==
            traces_.layers().end()) {
      return Unknown(id, "the trace has no such layer");
    }
    std::vector<std::vector<Matrix>> bases;  // candidates for each head
    for (int64_t head = 0; head < MatricesOf(layer); ++head) {
      bases.push_back(CandidateBases(objective_.composition, layer, head));
      if (bases.back().empty()) {
        return Unknown(id, "the composition does not contain the eigenvectors");
      }
    }
    const LayerMoments moments = traces_.Moments(static_cast<int>(id));
    if (!moments.Has(MomentOf(*objective_.target))) {
      return Unknown(id,
                     fmt::format("the trace has no moment for {}", TargetName(*objective_.target)));
    }
    return Against(id, layer, bases, moments);
  }

 private:
  static std::vector<ProvenanceResult> Unknown(int64_t id, const std::string& reason) {
    ProvenanceResult result;
    result.layer = id;
    result.reason = reason;
    return {result};
  }

  std::vector<ProvenanceResult> Against(int64_t id, const ZooLayer& layer,
                                        const std::vector<std::vector<Matrix>>& bases,
                                        const LayerMoments& moments) const {
    const std::vector<Matrix> targets = FormTargets(
        moments, *objective_.target, layer.heads > 0 ? Grouping::kHead : Grouping::kLayer);
    std::vector<ProvenanceResult> results;
    if (targets.size() != bases.size() || targets.front().rows() != layer.dim) {
      results =
          Unknown(id, fmt::format("{} matrices of dim {} in the file, {} of dim {} in the "
                                  "trace: another model",
                                  bases.size(), layer.dim, targets.size(), targets.front().rows()));
      results.front().verdict = ProvenanceVerdict::kOther;
      return results;
    }
    for (size_t head = 0; head < bases.size(); ++head) {
      ProvenanceResult result = Compare(layer, bases[head].front(), targets[head]);
      if (result.verdict != ProvenanceVerdict::kFits && bases[head].size() > 1) {
        result = Compare(layer, bases[head].back(), targets[head]);
      }
      result.layer = id;
      result.head = layer.heads > 0 ? static_cast<int64_t>(head) : -1;
      results.push_back(std::move(result));
    }
    return results;
  }

  const ZooFile& file_;
  const TraceSet& traces_;
  Objective objective_;
};

}  // namespace

std::string_view ProvenanceName(ProvenanceVerdict verdict) {
  switch (verdict) {
    case ProvenanceVerdict::kFits:
      return "fits";
    case ProvenanceVerdict::kOther:
      return "other";
    case ProvenanceVerdict::kNotRecoverable:
      return "not_recoverable";
  }
  FailCheck("every verdict has a name", __FILE__, __LINE__);
}

std::vector<ProvenanceResult> CheckProvenance(const ZooFile& file, ZooSide side,
                                              const TraceSet& traces, const RunContext& context) {
  const Checker checker(file, side, traces);
  std::vector<ProvenanceResult> all;
  context.progress->Begin(side == ZooSide::kKey ? "provenance of K" : "provenance of V",
                          static_cast<int64_t>(file.layers.size()), "layers");
  for (const auto& [id, layer] : file.layers) {
    if (context.cancel != nullptr) context.cancel->ThrowIfCancelled("");
    for (ProvenanceResult& result : checker.Layer(id, layer)) all.push_back(std::move(result));
    context.progress->Advance(1);
  }
  context.progress->End();
  return all;
}

}  // namespace oscar
