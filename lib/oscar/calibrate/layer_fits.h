// Rotations of all layers.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "oscar/calibrate/options.h"
#include "oscar/core/progress.h"
#include "oscar/quant/scheme.h"
#include "oscar/trace/trace.h"

namespace oscar {

// One side of one layer. Eigenvectors are dropped; everything measured stays.
struct SideFits {
  std::optional<Target> target;  // nullopt: data-free
  Grouping grouping = Grouping::kLayer;
  int64_t dim = 0;
  std::vector<RotationFit> rotations;     // one, or one per KV head
  std::vector<std::vector<float>> other;  // the other grouping; empty: none to compare with
  PredictedLoss predicted;                // both 0 for a data-free side

  Transform Rotation() const;
  // The rotations of the other grouping; those of Rotation() when there is none.
  Transform OtherRotation() const;
};

struct LayerFits {
  LayerShape shape;
  uint64_t tokens = 0;
  SideFits key, value;
};

// Fits every layer of the traces. Layers run in parallel on context.threads threads; results do
// not depend on their number. Errors as FitSide, naming the layer, and Error(kInterrupted).
std::map<int, LayerFits> FitLayers(const TraceSet& traces, const CalibrateOptions& options,
                                   const RunContext& context);

}  // namespace oscar
