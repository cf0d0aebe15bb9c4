// The use case of oscar-calibrate: traces in, a zoo entry out.
#pragma once

#include <string>

#include "oscar/calibrate/options.h"
#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar {

struct CalibrateResult {
  Value manifest;       // as written, without the file hashes
  std::string summary;  // for a person
  Value record;         // `oscar.calibrate/1`: schema, folder, notes and manifest
};

// Fits rotations, chooses clip ratios and writes the entry as one unit, or throws and leaves
// nothing behind. Equal traces and options give equal bytes at any thread count, the manifest's
// "volatile" apart. Throws Error: see CalibrateOptions::Check, TraceSet, FitLayers, ChooseClips,
// WriteZooEntry, RequirePackable. Sets the process's BLAS threads to 1.
CalibrateResult Calibrate(const CalibrateOptions& options, const RunContext& context);

// Name of the BLAS library and its version, for --version.
std::string BlasLibrary();

}  // namespace oscar
