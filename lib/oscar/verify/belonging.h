// Whether zoo entries and held-out traces belong together: the same model, other text.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/quant/methods.h"
#include "oscar/trace/trace.h"
#include "oscar/zoo/entry.h"

namespace oscar {

// What the manifest of an entry says about its calibration text: `calibration.sequences` (SHA-256
// of the token ids of each sequence) and `calibration.ngrams` (sampled 24-gram hashes as integers).
struct CalibrationText {
  TraceHeader header;     // empty where the manifest is absent or silent
  bool complete = false;  // all of the text is in it, so that finding nothing means something
};
CalibrationText CalibrationTextOf(const ZooEntry& entry);

// Throws Error(kMismatch) when the manifests of entry and traces name different models
// (`model.id`, `model.config_hash`, `model.weights_fingerprint` against the trace's `model_id`,
// `config_hash`, `weights_fingerprint`), or when the entry lacks a layer of the traces or has
// another head dim or number of KV heads. Adds a sentence to `notes` for what cannot be checked.
void CheckSameModel(const ZooEntry& entry, const TraceSet& set, std::vector<std::string>& notes);

// An entry as plain data for the table of methods, with its calibrated clip ratios.
ModelRotations RotationsOf(const ZooEntry& entry, const std::string& tag);

// Tags for entries, unique even where folders share their last component.
std::vector<std::string> UniqueTags(const std::vector<ZooEntry>& entries);

// Shapes of all layers of a set.
std::map<int, LayerShape> ShapesOf(const TraceSet& set);

}  // namespace oscar
