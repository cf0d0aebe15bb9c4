// The table of moments: raw sums over calibration tokens, their merge, and the calibration
// targets formed from them. Sums stay float64 and unnormalised; means are formed late.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/layer.h"

namespace oscar {

enum class Moment { kQq, kKk, kVv, kOo, kSst, kSstWeight, kQSum, kKSum, kVSum };

// One row of the table. Adding a moment is one row here and one term in the observer.
struct MomentInfo {
  Moment id;
  std::string_view name;  // dataset name in a trace and value of --moments
  bool per_query_head;    // leading axis: H_q when true, H_kv otherwise
  bool value_dim;         // trailing axes: D_v when true, D_k otherwise
  int rank;               // 2: [H, D, D], 1: [H, D], 0: [H]
  std::string_view formula;
};

// All moments in table order.
std::span<const MomentInfo> MomentTable();
const MomentInfo& InfoOf(Moment id);
// Throws Error(kUsage) listing the known names.
Moment MomentFromName(std::string_view name);
// "all" or a comma-separated list; `sst` implies `sst_weight` and `qq`. Throws Error(kUsage).
std::vector<Moment> ParseMomentList(std::string_view list);

// A float64 tensor with its shape, row-major.
struct MomentTensor {
  std::vector<int64_t> shape;
  std::vector<double> data;
};

std::vector<int64_t> MomentShape(Moment id, const LayerShape& shape);

// Everything known about one layer: raw sums over `count` tokens.
struct LayerMoments {
  LayerShape shape;
  uint64_t count = 0;
  std::map<Moment, MomentTensor> sums;
  // SHA-256 of the `qq` whose score weights went into `sst`; empty without sst.
  std::string sst_qq_hash;

  bool Has(Moment id) const { return sums.contains(id); }
  // Throws Error(kData) naming the moment when it is absent.
  const MomentTensor& At(Moment id) const;
};

// SHA-256 over the bytes of a moment tensor.
std::string HashOf(const MomentTensor& tensor);

// into += other. Moments present in only one of the two are dropped, and so is `sst` when the two
// used different `qq` (the caller recomputes it from rows where it can). Throws Error(kMismatch)
// when the layer shapes differ.
void Merge(LayerMoments& into, const LayerMoments& other);

// Calibration targets (method.md 2 in symbols):
//   qqt   C = sum qq / (N H_q)                          keys, what attention consumes
//   ktk   C = sum kk / (N H_kv)                         keys, plain
//   sst   C = mean over KV heads of sst_h / sst_weight_h  values, the public code's surrogate
//   svsv  C = sum oo / (N H_q)                          values, exact V^T S^T S V
//   vtv   C = sum vv / (N H_kv)                         values, plain
enum class Target { kQqt, kKtk, kSst, kSvsv, kVtv };
enum class Grouping { kLayer, kHead };  // one matrix per layer, or one per KV head

std::string_view TargetName(Target target);
Target TargetFromName(std::string_view name);  // throws Error(kUsage)
bool IsKeyTarget(Target target);
Moment MomentOf(Target target);

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Symmetrised target matrices: one [D, D] for kLayer, H_kv of them for kHead. Throws Error(kData)
// when the moment is absent or count is 0, Error(kNumeric) when an entry is not finite.
std::vector<Matrix> FormTargets(const LayerMoments& moments, Target target, Grouping grouping);

}  // namespace oscar
