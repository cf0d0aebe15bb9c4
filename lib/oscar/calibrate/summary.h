// What a person reads after a calibration.
#pragma once

#include <map>
#include <string>

#include "oscar/calibrate/clips.h"
#include "oscar/calibrate/layer_fits.h"
#include "oscar/calibrate/options.h"
#include "oscar/calibrate/recommendation.h"

namespace oscar {

// One line per layer and a few about the whole; ends with a newline.
std::string SummaryText(const CalibrateOptions& options, const std::map<int, LayerFits>& fits,
                        const Clips& clips, const Recommendation& recommendation);

}  // namespace oscar
