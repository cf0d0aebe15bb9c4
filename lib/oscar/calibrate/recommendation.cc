#include "oscar/calibrate/recommendation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace oscar {
namespace {

// Geometric mean of the positive ratios; nullopt when there is none.
std::optional<double> GeometricMean(const std::vector<double>& ratios) {
  double sum = 0;
  int64_t count = 0;
  for (const double ratio : ratios) {
    if (!(ratio > 0) || !std::isfinite(ratio)) continue;
    sum += std::log(ratio);
    ++count;
  }
  if (count == 0) return std::nullopt;
  return std::exp(sum / static_cast<double>(count));
}

SideRatios RatiosOf(const std::map<int, LayerFits>& fits, SideFits LayerFits::*side,
                    const SideClips& clips, double power) {
  std::vector<double> predicted, measured;
  for (const auto& [layer, fit] : fits) {
    const SideFits& here = fit.*side;
    const auto ratio = here.target ? here.predicted.Ratio() : std::nullopt;
    if (ratio) predicted.push_back(*ratio);
    const auto loss = MeasuredOf(here, clips, layer);
    if (loss) measured.push_back(std::pow(loss->shared / loss->per_head, power));
  }
  return {GeometricMean(predicted), GeometricMean(measured)};
}

std::string Text(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.2f}", *ratio) : "unknown";
}

}  // namespace

std::optional<SharedAndPerHead> MeasuredOf(const SideFits& fit, const SideClips& clips, int layer) {
  const auto found = clips.measured.find(layer);
  if (found == clips.measured.end()) return std::nullopt;
  const MeasuredLoss& loss = found->second;
  if (fit.grouping == Grouping::kLayer) return SharedAndPerHead{loss.chosen, loss.other};
  return SharedAndPerHead{loss.other, loss.chosen};
}

Recommendation Recommend(const std::map<int, LayerFits>& fits, const Clips& clips) {
  Recommendation result;
  result.key = RatiosOf(fits, &LayerFits::key, clips.key, 1);
  result.value = RatiosOf(fits, &LayerFits::value, clips.value, 2);
  bool predicted = false, measured = false;  // of sides of which both are known
  for (const SideRatios& side : {result.key, result.value}) {
    const bool by_moments = side.predicted.value_or(0) >= kPredictedThreshold;
    const bool by_rows = side.measured.value_or(0) >= kMeasuredThreshold;
    if (by_moments || by_rows) result.grouping = Grouping::kHead;
    if (!side.predicted || !side.measured) continue;
    predicted = predicted || by_moments;
    measured = measured || by_rows;
  }
  result.disputed = predicted != measured;
  const auto data_free = [](const auto& layer) {
    return !layer.second.key.target && !layer.second.value.target;
  };
  if (std::all_of(fits.begin(), fits.end(), data_free)) {
    result.reason = "both rotations are data-free";
    return result;
  }
  result.reason = fmt::format(
      "loss of one rotation per layer over one per KV head: keys {} predicted, {} measured; values "
      "{} predicted, {} measured; per head pays from {:g} predicted or {:g} measured",
      Text(result.key.predicted), Text(result.key.measured), Text(result.value.predicted),
      Text(result.value.measured), kPredictedThreshold, kMeasuredThreshold);
  if (result.disputed) result.reason += "; the two disagree: compare both with oscar-verify";
  return result;
}

}  // namespace oscar
