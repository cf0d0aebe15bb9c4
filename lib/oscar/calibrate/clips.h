// Clip ratios of all layers.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "oscar/calibrate/layer_fits.h"
#include "oscar/calibrate/options.h"
#include "oscar/core/progress.h"
#include "oscar/trace/trace.h"

namespace oscar {

// Losses of the two groupings of one layer, each at its best ratio.
struct MeasuredLoss {
  double chosen = 0;
  double other = 0;
};

struct SideClips {
  std::map<int, double> ratios;          // by layer
  std::map<int, ClipCurve> curves;       // search only
  std::map<int, MeasuredLoss> measured;  // search only, layers with two groupings
  std::optional<SingleClip> single;      // search only
};

struct Clips {
  SideClips key;          // losses: mean attention KL in nats
  SideClips value;        // losses: relative error of the attention output
  int64_t sequences = 0;  // that the search used, at most
  int64_t queries = 0;    // positions per sequence
  // Layers that the search left out, because nothing in them is quantised: their sliding window
  // lies within the recent tokens. They get the best single ratios.
  std::vector<int> exact_layers;
};

// Fixed ratios at once, or the search over rows of the traces. Throws Error(kData) when no trace
// has rows, when no sequence with rows has a quantised position (naming sink, recent and the
// longest, and the sliding window of a layer where that is why), Error(kUsage) when the group size
// does not fit a head dim.
Clips ChooseClips(const TraceSet& traces, const std::map<int, LayerFits>& fits,
                  const CalibrateOptions& options, const RunContext& context);

}  // namespace oscar
