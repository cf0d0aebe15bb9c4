#include "oscar/rotation/clip_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/metrics/attention.h"
#include "oscar/quant/quantiser.h"
#include "oscar/quant/transform.h"

namespace oscar {
namespace {

// x R as [tokens, heads, dim].
std::vector<float> Rotate(const Transform& transform, HeadRows<const float> x, int threads) {
  const RotatedRows rotated(transform, /*as_served=*/false, x, threads);
  std::vector<float> result(static_cast<size_t>(x.size()));
  const HeadRows<float> out{result.data(), x.tokens, x.heads, x.dim};
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t h = 0; h < x.heads; ++h) std::copy_n(rotated.Row(t, h), x.dim, out.At(t, h));
  }
  return result;
}

// The rotation of keys as queries see it: query head h turns with KV head h / group.
Transform ForQueries(const Transform& key, int64_t group) {
  if (key.matrices.size() <= 1) return key;
  Transform query;
  query.dim = key.dim;
  for (const std::vector<float>& matrix : key.matrices) {
    query.matrices.insert(query.matrices.end(), static_cast<size_t>(group), matrix);
  }
  return query;
}

// `rows` with the rows that some query may see quantised replaced by their reconstructions.
std::vector<float> Reconstructed(HeadRows<const float> rows, const QuantiserSpec& quantiser,
                                 const Windows& windows) {
  std::vector<float> result(rows.data, rows.data + rows.size());
  const HeadRows<float> out{result.data(), rows.tokens, rows.heads, rows.dim};
  RowQuantiser row_quantiser(quantiser, rows.dim);
  for (int64_t t = windows.sink; t < rows.tokens - windows.recent; ++t) {
    for (int64_t h = 0; h < rows.heads; ++h) row_quantiser.Reconstruct(out.At(t, h));
  }
  return result;
}

}  // namespace

struct ClipProblem::Sequence {
  std::vector<float> q, k, v;  // rotated
  HeadRows<const float> keys, values;
  std::unique_ptr<AttentionReference> exact;
};

ClipProblem::ClipProblem(const LayerShape& shape, std::span<const SequenceRows> sequences,
                         const Transform& key, const Transform& value,
                         const ClipSearchSettings& settings, int threads)
    : shape_(shape), settings_(settings) {
  OSCAR_CHECK(!sequences.empty());
  settings.quantiser.Validate(shape.k_dim);
  settings.quantiser.Validate(shape.v_dim);
  for (const SequenceRows& rows : sequences) {
    const int64_t n = rows.tokens;
    const std::vector<int64_t> queries =
        ChooseQueries(n, settings.queries, settings.windows, true, shape.window);
    auto sequence = std::make_unique<Sequence>();
    sequence->q = Rotate(ForQueries(key, shape.group()),
                         {rows.q.data(), n, shape.q_heads, shape.k_dim}, threads);
    sequence->k = Rotate(key, {rows.k.data(), n, shape.kv_heads, shape.k_dim}, threads);
    sequence->v = Rotate(value, {rows.v.data(), n, shape.kv_heads, shape.v_dim}, threads);
    sequence->keys = {sequence->k.data(), n, shape.kv_heads, shape.k_dim};
    sequence->values = {sequence->v.data(), n, shape.kv_heads, shape.v_dim};
    sequence->exact = std::make_unique<AttentionReference>(
        shape, HeadRows<const float>{sequence->q.data(), n, shape.q_heads, shape.k_dim},
        sequence->keys, sequence->values, queries, threads);
    sequences_.push_back(std::move(sequence));
  }
}

ClipProblem::~ClipProblem() = default;

double ClipProblem::KeyLoss(double ratio) const {
  QuantiserSpec quantiser = settings_.quantiser;
  quantiser.clip = ratio;
  MeanSum sum;
  for (const auto& sequence : sequences_) {
    const std::vector<float> k_hat = Reconstructed(sequence->keys, quantiser, settings_.windows);
    HeadRows<const float> view = sequence->keys;
    view.data = k_hat.data();
    sum.Add(sequence->exact->KeyKl(view, settings_.windows, true, 1));
  }
  return sum.Mean();
}

double ClipProblem::ValueLoss(double ratio) const {
  QuantiserSpec quantiser = settings_.quantiser;
  quantiser.clip = ratio;
  ErrorRatio sum;
  for (const auto& sequence : sequences_) {
    const std::vector<float> v_hat = Reconstructed(sequence->values, quantiser, settings_.windows);
    HeadRows<const float> view = sequence->values;
    view.data = v_hat.data();
    sum.Add(sequence->exact->ValueError(view, settings_.windows, true, 1));
  }
  return sum.Relative();
}

size_t ClipCurve::Best() const {
  OSCAR_CHECK(!losses.empty() && losses.size() == ratios.size());
  size_t best = 0;
  for (size_t i = 1; i < losses.size(); ++i) {
    if (losses[i] <= losses[best]) best = i;
  }
  return best;
}

ClipCurve SearchClip(std::span<const double> ratios, int64_t dim,
                     const std::function<double(double)>& loss, int threads) {
  std::vector<size_t> first;  // first ratio of each distinct order statistic
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (i == 0 || ClipIndex(ratios[i], dim) != ClipIndex(ratios[i - 1], dim)) first.push_back(i);
  }
  ClipCurve curve;
  curve.ratios.assign(ratios.begin(), ratios.end());
  curve.losses.resize(ratios.size());
  ParallelFor(static_cast<int64_t>(first.size()), threads, [&](int64_t task) {
    const auto n = static_cast<size_t>(task);
    const double value = loss(ratios[first[n]]);
    if (!std::isfinite(value)) {
      throw Error(ErrorCode::kNumeric,
                  fmt::format("loss at clip ratio {} is {}", ratios[first[n]], value));
    }
    const size_t end = n + 1 < first.size() ? first[n + 1] : ratios.size();
    std::fill(curve.losses.begin() + static_cast<std::ptrdiff_t>(first[n]),
              curve.losses.begin() + static_cast<std::ptrdiff_t>(end), value);
  });
  return curve;
}

double DescendClip(std::span<const double> ratios, int64_t dim, size_t start,
                   const std::function<double(double)>& loss) {
  OSCAR_CHECK(start < ratios.size());
  double best = loss(ratios[start]);
  const auto walk = [&](std::ptrdiff_t step) {
    bool improved = false;
    int64_t index = ClipIndex(ratios[start], dim);
    for (auto i = static_cast<std::ptrdiff_t>(start) + step;
         i >= 0 && i < static_cast<std::ptrdiff_t>(ratios.size()); i += step) {
      const double ratio = ratios[static_cast<size_t>(i)];
      if (ClipIndex(ratio, dim) == index) continue;
      index = ClipIndex(ratio, dim);
      const double value = loss(ratio);
      if (!(value < best)) break;
      best = value;
      improved = true;
    }
    return improved;
  };
  if (!walk(-1)) walk(1);
  return best;
}

SingleClip BestSingleClip(const std::map<int, ClipCurve>& layers) {
  OSCAR_CHECK(!layers.empty());
  ClipCurve mean;
  mean.ratios = layers.begin()->second.ratios;
  mean.losses.resize(mean.ratios.size());
  SingleClip single;
  const auto count = static_cast<double>(layers.size());
  for (const auto& [layer, curve] : layers) {
    OSCAR_CHECK(curve.ratios == mean.ratios);
    for (size_t i = 0; i < curve.losses.size(); ++i) mean.losses[i] += curve.losses[i] / count;
    single.per_layer_loss += curve.losses[curve.Best()] / count;
  }
  single.ratio = mean.ratios[mean.Best()];
  single.loss = mean.losses[mean.Best()];
  return single;
}

}  // namespace oscar
