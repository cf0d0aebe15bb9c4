// What a person reads after a calibration.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oscar/calibrate/clips.h"
#include "oscar/calibrate/layer_fits.h"
#include "oscar/calibrate/options.h"
#include "oscar/calibrate/recommendation.h"

namespace oscar {

// What was asked for and will not do what one may expect: windows that an engine cannot serve,
// targets that the composition does not use.
std::vector<std::string> NotesOf(const CalibrateOptions& options);

// One line per layer and a few about the whole; ends with a newline.
std::string SummaryText(const CalibrateOptions& options, const std::map<int, LayerFits>& fits,
                        const Clips& clips, const Recommendation& recommendation);

}  // namespace oscar
