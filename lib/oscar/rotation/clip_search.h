// The clip ratio that attention likes best, on rows of calibration sequences.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/quant/scheme.h"

namespace oscar {

// Ratios low, low + step, ... up to high. 0 < low <= high <= 1, step > 0.
struct ClipGrid {
  double low = 0.7;
  double high = 1;
  double step = 0.01;

  // "LO:HI:STEP". Throws Error(kUsage) naming what is wrong.
  static ClipGrid FromText(const std::string& text);
  // Rounded to 6 decimals, so that 0.7 + 23 * 0.01 is 0.93. Throws Error(kUsage) when the grid is
  // not as above or has more than 1000 points.
  std::vector<double> Ratios() const;
};

// Rows of one sequence of one layer as captured, float32: q [tokens, H_q, D_k],
// k [tokens, H_kv, D_k], v [tokens, H_kv, D_v].
struct SequenceRows {
  int64_t tokens = 0;
  std::vector<float> q, k, v;
};

struct ClipSearchSettings {
  Windows windows;
  int64_t queries = 64;     // positions per sequence, chosen by ChooseQueries
  QuantiserSpec quantiser;  // its `clip` is what is searched
};

// Loss by clip ratio of one side of one layer.
struct ClipCurve {
  std::vector<double> ratios;  // ascending
  std::vector<double> losses;

  // Index of the least loss; of equals the largest ratio, which clips least.
  size_t Best() const;
};

// One layer under one pair of rotations: the exact attention of some sequences, computed once.
// Everything happens in rotated coordinates: logits q R (k R)^T and the norm of output errors do
// not change under an orthogonal R, so rows are rotated once and never back.
class ClipProblem {
 public:
  // Throws Error(kData) when a sequence has no quantised position, Error(kMismatch) when a rotation
  // does not fit, Error(kUsage) when the quantiser does not fit the head dims.
  ClipProblem(const LayerShape& shape, std::span<const SequenceRows> sequences,
              const Transform& key, const Transform& value, const ClipSearchSettings& settings,
              int threads);
  ~ClipProblem();

  // Mean KL(p || p_hat) in nats over (sequence, query, query head), keys quantised with clip
  // `ratio`, values exact. One thread; may be called from several at once.
  double KeyLoss(double ratio) const;
  // Relative error of the attention output under the exact probabilities, values quantised with
  // clip `ratio`: sqrt(sum |p (v_hat - v)|^2 / sum |p v|^2) over all sequences.
  double ValueLoss(double ratio) const;

 private:
  struct Sequence;
  LayerShape shape_;
  ClipSearchSettings settings_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

// The curve over `ratios`. Ratios that pick the same order statistic of a row of `dim` channels
// share one evaluation. Up to `threads` evaluations run at once. Throws Error(kNumeric) when a
// loss is not finite.
ClipCurve SearchClip(std::span<const double> ratios, int64_t dim,
                     const std::function<double(double)>& loss, int threads);

// The least loss found walking downhill on the grid from ratio index `start`, one order statistic
// of a row of `dim` channels at a time: enough for a fit that is only compared. Never above the
// loss at `start`.
double DescendClip(std::span<const double> ratios, int64_t dim, size_t start,
                   const std::function<double(double)>& loss);

// One ratio for all layers, for engines that take no more: the least mean over layers of the loss.
struct SingleClip {
  double ratio = 0;
  double loss = 0;            // mean over layers at `ratio`
  double per_layer_loss = 0;  // mean over layers, each at its own best ratio
};
SingleClip BestSingleClip(const std::map<int, ClipCurve>& layers);

}  // namespace oscar
