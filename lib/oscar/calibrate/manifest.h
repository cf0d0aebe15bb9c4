// The manifest of a zoo entry, `oscar.zoo/1`. docs/formats/zoo-manifest.md lists its keys.
#pragma once

#include <map>

#include "oscar/calibrate/clips.h"
#include "oscar/calibrate/layer_fits.h"
#include "oscar/calibrate/options.h"
#include "oscar/calibrate/recommendation.h"
#include "oscar/core/value.h"
#include "oscar/trace/trace.h"

namespace oscar {

// All but the file names and hashes, which WriteZooEntry adds. `trace_hashes` [traces]: SHA-256 of
// the trace files. Equal inputs and options give equal values, "volatile" apart.
Value MakeManifest(const CalibrateOptions& options, const TraceSet& traces,
                   const std::vector<std::string>& trace_hashes,
                   const std::map<int, LayerFits>& fits, const Clips& clips,
                   const Recommendation& recommendation);

}  // namespace oscar
