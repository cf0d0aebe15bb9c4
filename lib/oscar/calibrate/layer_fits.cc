#include "oscar/calibrate/layer_fits.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/core/parallel.h"
#include "oscar/quant/transform.h"

namespace oscar {
namespace {

Transform FromMatrices(const std::vector<std::vector<float>>& matrices, int64_t dim) {
  Transform transform;
  transform.matrices = matrices;
  transform.dim = dim;
  return transform;
}

SideFits FitSideOf(const LayerMoments& moments, int layer, const std::optional<Target>& target,
                   bool key, const CalibrateOptions& options) {
  SideFits side;
  side.dim = key ? moments.shape.k_dim : moments.shape.v_dim;
  if (!target || options.fit.composition == Composition::kHadamard) {
    side.rotations.push_back(FitHadamard(side.dim, layer, options.fit.gates));
  } else {
    side.target = target;
    side.grouping = options.grouping;
    BothFits both = FitBoth(moments, layer, *target, options.grouping, options.fit);
    side.rotations = std::move(both.chosen.rotations);
    side.other = std::move(both.other);
    side.predicted = both.predicted;
  }
  // D^2 doubles each: of no use any more, and many for wide heads.
  for (RotationFit& fit : side.rotations) fit.eigen.vectors.resize(0, 0);
  return side;
}

// The moment `sst` is lost when traces are merged whose tokens do not all have rows. Then every
// file has it, and "dump it" would be no help.
void CheckScoreWeights(const TraceSet& traces, const LayerMoments& moments, int layer,
                       const CalibrateOptions& options) {
  if (options.value_target != Target::kSst || moments.Has(Moment::kSst)) return;
  if (options.fit.composition == Composition::kHadamard || traces.traces().size() < 2) return;
  for (const TraceReader& trace : traces.traces()) {
    if (!std::ranges::binary_search(trace.header().layers, layer)) continue;
    if (!trace.ReadMoments(layer).Has(Moment::kSst)) return;
  }
  throw Error(ErrorCode::kData,
              fmt::format("layer {}, values (sst): score weights of several traces cannot be added "
                          "up, because they depend on the queries of all of them",
                          layer),
              "dump all text in one run, or the rows of all tokens (--rows-tokens), or use "
              "--v-target svsv");
}

}  // namespace

Transform SideFits::Rotation() const {
  std::vector<std::vector<float>> matrices;
  for (const RotationFit& fit : rotations) matrices.push_back(fit.stored);
  return FromMatrices(matrices, dim);
}

Transform SideFits::OtherRotation() const {
  return other.empty() ? Rotation() : FromMatrices(other, dim);
}

std::map<int, LayerFits> FitLayers(const TraceSet& traces, const CalibrateOptions& options,
                                   const RunContext& context) {
  const std::vector<int>& layers = traces.layers();
  const auto count = static_cast<int64_t>(layers.size());
  std::map<int, LayerFits> fits;
  for (const int layer : layers) fits[layer];
  context.progress->Begin("fitting rotations", count, "layers");
  // Batches, so that progress is told from this thread and few layers' moments are in memory.
  const int64_t batch = std::max(1, context.threads);
  for (int64_t begin = 0; begin < count; begin += batch) {
    if (context.cancel != nullptr) context.cancel->ThrowIfCancelled("nothing was written");
    const int64_t end = std::min(count, begin + batch);
    ParallelFor(end - begin, context.threads, [&](int64_t i) {
      const int layer = layers[static_cast<size_t>(begin + i)];
      const LayerMoments moments = traces.Moments(layer);
      LayerFits& fit = fits.at(layer);
      fit.shape = moments.shape;
      fit.tokens = moments.count;
      CheckScoreWeights(traces, moments, layer, options);
      fit.key = FitSideOf(moments, layer, options.key_target, true, options);
      fit.value = FitSideOf(moments, layer, options.value_target, false, options);
    });
    context.progress->Advance(end - begin);
  }
  context.progress->End();
  return fits;
}

}  // namespace oscar
