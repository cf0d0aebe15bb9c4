#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/stats/moments.h"

namespace oscar {
namespace {

struct TargetRow {
  Target id;
  std::string_view name;
  Moment moment;
  bool key;
};

constexpr std::array<TargetRow, 5> kTargets = {{
    {Target::kQqt, "qqt", Moment::kQq, true},
    {Target::kKtk, "ktk", Moment::kKk, true},
    {Target::kSst, "sst", Moment::kSst, false},
    {Target::kSvsv, "svsv", Moment::kOo, false},
    {Target::kVtv, "vtv", Moment::kVv, false},
}};

const TargetRow& RowOf(Target target) {
  const auto row = std::find_if(kTargets.begin(), kTargets.end(),
                                [&](const TargetRow& r) { return r.id == target; });
  OSCAR_CHECK(row != kTargets.end());
  return *row;
}

// The public code's floor under the summed score weights of a head.
constexpr double kWeightFloor = 1e-12;

// Mean second moment of the heads [begin, end) of a [H, D, D] moment; `divisors` one per head.
Matrix MeanOfHeads(const MomentTensor& sums, int64_t begin, int64_t end,
                   const std::vector<double>& divisors) {
  const int64_t dim = sums.shape[1];
  Matrix mean = Matrix::Zero(dim, dim);
  for (int64_t h = begin; h < end; ++h) {
    const Eigen::Map<const Matrix> head(sums.data.data() + h * dim * dim, dim, dim);
    mean += head / divisors[static_cast<size_t>(h)];
  }
  mean /= static_cast<double>(end - begin);
  return (mean + mean.transpose()) / 2;
}

void RequireFinite(const Matrix& matrix, Target target, Grouping grouping, size_t index) {
  for (Eigen::Index i = 0; i < matrix.rows(); ++i) {
    for (Eigen::Index j = 0; j < matrix.cols(); ++j) {
      if (std::isfinite(matrix(i, j))) continue;
      const std::string head =
          grouping == Grouping::kHead ? fmt::format(" of KV head {}", index) : "";
      throw Error(ErrorCode::kNumeric, fmt::format("target {}{}: entry ({}, {}) is {}",
                                                   TargetName(target), head, i, j, matrix(i, j)));
    }
  }
}

}  // namespace

std::string_view TargetName(Target target) { return RowOf(target).name; }
bool IsKeyTarget(Target target) { return RowOf(target).key; }
Moment MomentOf(Target target) { return RowOf(target).moment; }

Target TargetFromName(std::string_view name) {
  for (const TargetRow& row : kTargets) {
    if (row.name == name) return row.id;
  }
  throw Error(ErrorCode::kUsage,
              fmt::format("unknown target '{}'; known: qqt, ktk, sst, svsv, vtv", name));
}

std::vector<Matrix> FormTargets(const LayerMoments& moments, Target target, Grouping grouping) {
  if (moments.count == 0) {
    throw Error(ErrorCode::kData,
                fmt::format("target {}: no token was observed", TargetName(target)));
  }
  const Moment id = MomentOf(target);
  const MomentTensor& sums = moments.At(id);
  OSCAR_CHECK(sums.shape == MomentShape(id, moments.shape));
  const int64_t heads = sums.shape[0];
  std::vector<double> divisors(static_cast<size_t>(heads), static_cast<double>(moments.count));
  if (target == Target::kSst) {
    const MomentTensor& weights = moments.At(Moment::kSstWeight);
    OSCAR_CHECK(weights.shape == MomentShape(Moment::kSstWeight, moments.shape));
    for (size_t h = 0; h < divisors.size(); ++h) {
      divisors[h] = std::max(weights.data[h], kWeightFloor);
    }
  }
  const int64_t matrices = grouping == Grouping::kLayer ? 1 : moments.shape.kv_heads;
  const int64_t heads_each = heads / matrices;
  std::vector<Matrix> targets;
  for (int64_t m = 0; m < matrices; ++m) {
    targets.push_back(MeanOfHeads(sums, m * heads_each, (m + 1) * heads_each, divisors));
    RequireFinite(targets.back(), target, grouping, static_cast<size_t>(m));
  }
  return targets;
}

}  // namespace oscar
