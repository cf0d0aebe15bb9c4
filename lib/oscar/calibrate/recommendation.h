// One rotation per layer or one per KV head?
#pragma once

#include <map>
#include <optional>
#include <string>

#include "oscar/calibrate/clips.h"
#include "oscar/calibrate/layer_fits.h"
#include "oscar/core/value.h"

namespace oscar {

// Shared over per-head loss of one side, geometric mean over layers; absent where unknown.
struct SideRatios {
  std::optional<double> predicted;  // transform-coding bound, rotation/predict.h
  std::optional<double> measured;   // attention KL, or squared output error, on rows
};

struct Recommendation {
  Grouping grouping = Grouping::kLayer;
  SideRatios key, value;
  // The rows speak against the prediction: whoever can should compare both with oscar-verify.
  bool disputed = false;
  std::string reason;  // one sentence with the numbers
};

// Ratios from which rotations of their own pay for the engines that cannot load them. Heads of
// unrelated bases are predicted at 10 and more, heads that measurably do as well with one rotation
// at up to 2.5; 4 lies between in the logarithm. A measured gain needs no model: a quarter.
inline constexpr double kPredictedThreshold = 4;
inline constexpr double kMeasuredThreshold = 1.25;

// Per head when some side's predicted or measured ratio reaches its threshold; shared otherwise.
// Disputed when, of sides of which both are known, only one of the two does.
Recommendation Recommend(const std::map<int, LayerFits>& fits, const Clips& clips);

// Measured shared and per-head loss of a side of a layer; nullopt when not measured.
struct SharedAndPerHead {
  double shared = 0;
  double per_head = 0;
};
std::optional<SharedAndPerHead> MeasuredOf(const SideFits& fit, const SideClips& clips, int layer);

}  // namespace oscar
