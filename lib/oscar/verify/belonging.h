// Whether zoo entries and held-out traces belong together: the same model, other text.
#pragma once

#include <filesystem>
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

// Throws Error(kMismatch) when entry and data name different models (`model.id`,
// `model.config_hash`, `model.weights_fingerprint` of the entry's manifest against `model_id`,
// `config_hash`, `weights_fingerprint` of `identity`), or when the entry lacks a layer of `shapes`
// or has another head dim or number of KV heads. `what` names the data in messages ("the traces").
// Adds a sentence to `notes` for what cannot be checked.
void CheckSameModel(const ZooEntry& entry, const Value& identity,
                    const std::map<int, LayerShape>& shapes, const std::string& what,
                    std::vector<std::string>& notes);

// An entry as plain data for the table of methods, with its calibrated clip ratios.
ModelRotations RotationsOf(const ZooEntry& entry, const std::string& tag);

// The zoo entries of one verification, in the order given.
struct EntrySet {
  std::vector<ZooEntry> entries;
  std::vector<std::string> tags;  // unique even where folders share their last component
  std::vector<ModelRotations> rotations;
};

// Throws Error(kUsage) for a folder given twice, and what ReadZooEntry throws.
EntrySet ReadEntries(const std::vector<std::filesystem::path>& folders);

// Overlap of every entry's calibration text with `text`, named `what` in messages: one object of
// the report's `inputs.overlap` per entry. Throws Error(kMismatch) when there is any and it is not
// `allowed`; otherwise it becomes a note, and so does an overlap that cannot be known.
Value::Array CheckOverlap(const EntrySet& entries, const TraceHeader& text, const std::string& what,
                          bool allowed, std::vector<std::string>& notes);

// Shapes of all layers of a set.
std::map<int, LayerShape> ShapesOf(const TraceSet& set);

}  // namespace oscar
