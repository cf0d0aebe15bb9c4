#include "oscar/verify/belonging.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {
namespace {

std::string TextOf(const Value* value) {
  if (value == nullptr || value->is_null()) return "";
  return value->is_string() ? value->AsString() : value->ToJson();
}

struct ModelKey {
  const char* zoo;   // below "model" of the zoo manifest
  const char* data;  // in a trace's manifest
  bool identifies;   // equal values prove the same model
};
constexpr ModelKey kModelKeys[] = {{"id", "model_id", false},
                                   {"config_hash", "config_hash", true},
                                   {"weights_fingerprint", "weights_fingerprint", true}};

void CheckSide(const ZooEntry& entry, const ZooFile& file, bool key,
               const std::map<int, LayerShape>& shapes, const std::string& what) {
  for (const auto& [layer, shape] : shapes) {
    const std::string where =
        fmt::format("{}: {} rotation of layer {}", entry.folder.string(), key ? "K" : "V", layer);
    const auto found = file.layers.find(layer);
    if (found == file.layers.end()) {
      std::string ids;
      for (const auto& [id, unused] : file.layers) ids += fmt::format(" {}", id);
      throw Error(ErrorCode::kMismatch, fmt::format("{} is missing, the file has{}", where, ids),
                  "the entry was made for another model or other layers");
    }
    const int64_t dim = key ? shape.k_dim : shape.v_dim;
    if (found->second.dim != dim) {
      throw Error(ErrorCode::kMismatch, fmt::format("{}: head dim {}, but {} in {}", where,
                                                    found->second.dim, dim, what));
    }
    if (found->second.heads != 0 && found->second.heads != shape.kv_heads) {
      throw Error(ErrorCode::kMismatch, fmt::format("{}: {} KV heads, but {} in {}", where,
                                                    found->second.heads, shape.kv_heads, what));
    }
  }
}

std::map<int, RotationData> SideData(const ZooFile& file, const ZooEntry& entry, bool key) {
  std::map<int, RotationData> layers;
  for (const auto& [layer, rotation] : file.layers) {
    RotationData& data = layers[static_cast<int>(layer)];
    data.heads = rotation.heads;
    data.dim = rotation.dim;
    data.rotation = rotation.rotation;
    data.clip = key ? entry.KeyClip(layer) : entry.ValueClip(layer);
  }
  return layers;
}

std::vector<std::string> UniqueTags(const std::vector<ZooEntry>& entries) {
  std::vector<std::string> tags;
  for (const ZooEntry& entry : entries) {
    const auto same = std::ranges::count_if(
        entries, [&](const ZooEntry& other) { return other.Tag() == entry.Tag(); });
    std::string tag = entry.Tag();
    if (same > 1) {
      const std::filesystem::path folder =
          std::filesystem::absolute(entry.folder / "").lexically_normal().parent_path();
      tag = folder.parent_path().filename().string() + "/" + tag;
    }
    while (std::ranges::find(tags, tag) != tags.end()) tag += "'";
    tags.push_back(tag);
  }
  return tags;
}

}  // namespace

namespace {

CalibrationText ReadCalibrationText(const Value* calibration) {
  CalibrationText text;
  if (calibration == nullptr) return text;
  if (const Value* sequences = calibration->Find("sequences")) {
    for (const Value& sha256 : sequences->AsArray()) {
      TraceSequence sequence;
      sequence.sha256 = sha256.AsString();
      text.header.sequences.push_back(sequence);
    }
  }
  if (const Value* ngrams = calibration->Find("ngrams")) {
    // Hashes use all 64 bits; manifests hold them as signed integers of the same bits.
    for (const Value& hash : ngrams->AsArray()) {
      text.header.ngram_hashes.push_back(static_cast<uint64_t>(hash.AsInt()));
    }
  }
  // Some calibration traces may come from dumps without token ids.
  const Value* known = calibration->Find("token_ids_known");
  text.complete = !text.header.sequences.empty() && (known == nullptr || known->AsBool());
  return text;
}

}  // namespace

CalibrationText CalibrationTextOf(const ZooEntry& entry) {
  try {
    return ReadCalibrationText(entry.manifest ? entry.manifest->Find("calibration") : nullptr);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: manifest.json: calibration: {}",
                                          entry.folder.string(), error.what()));
  }
}

void CheckSameModel(const ZooEntry& entry, const Value& identity,
                    const std::map<int, LayerShape>& shapes, const std::string& what,
                    std::vector<std::string>& notes) {
  const Value* model = entry.manifest ? entry.manifest->Find("model") : nullptr;
  bool identified = false;
  for (const ModelKey& key : kModelKeys) {
    const std::string stated = model == nullptr ? "" : TextOf(model->Find(key.zoo));
    const std::string found = TextOf(identity.Find(key.data));
    if (stated.empty() || found.empty()) continue;
    identified = identified || key.identifies;
    if (stated == found) continue;
    throw Error(ErrorCode::kMismatch,
                fmt::format("{}: made for a model with {} '{}', but it is '{}' in {}",
                            entry.folder.string(), key.data, stated, found, what),
                "rotations fit the model they were calibrated on, even where shapes agree");
  }
  CheckSide(entry, entry.key, true, shapes, what);
  CheckSide(entry, entry.value, false, shapes, what);
  if (!identified) {
    notes.push_back(fmt::format(
        "{}: its model is unknown, only layer numbers and head dims were compared", entry.Tag()));
  }
  if (entry.key.layers.size() > shapes.size()) {
    notes.push_back(fmt::format("{}: only {} of its {} layers are in {}", entry.Tag(),
                                shapes.size(), entry.key.layers.size(), what));
  }
}

ModelRotations RotationsOf(const ZooEntry& entry, const std::string& tag) {
  return {tag, SideData(entry.key, entry, true), SideData(entry.value, entry, false)};
}

EntrySet ReadEntries(const std::vector<std::filesystem::path>& folders) {
  EntrySet set;
  std::vector<std::filesystem::path> seen;
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path canonical = std::filesystem::weakly_canonical(folder);
    if (std::ranges::find(seen, canonical) != seen.end()) {
      throw Error(ErrorCode::kUsage, fmt::format("{}: given twice", folder.string()));
    }
    seen.push_back(canonical);
    set.entries.push_back(ReadZooEntry(folder));
  }
  set.tags = UniqueTags(set.entries);
  for (size_t i = 0; i < set.entries.size(); ++i) {
    set.rotations.push_back(RotationsOf(set.entries[i], set.tags[i]));
  }
  return set;
}

Value::Array CheckOverlap(const EntrySet& entries, const TraceHeader& text, const std::string& what,
                          bool allowed, std::vector<std::string>& notes) {
  Value::Array list;
  std::string found;
  for (size_t i = 0; i < entries.entries.size(); ++i) {
    const CalibrationText calibration = CalibrationTextOf(entries.entries[i]);
    Overlap overlap = FindOverlap(calibration.header, text);
    overlap.known = overlap.known && (calibration.complete || overlap.any());
    Value::Array identical;
    for (const size_t index : overlap.identical_sequences) {
      identical.emplace_back(static_cast<int64_t>(index));
    }
    if (!overlap.known) {
      notes.push_back(fmt::format(
          "overlap of {} with the calibration text of {} is unknown: token ids are not recorded",
          what, entries.tags[i]));
    } else if (overlap.any()) {
      found += fmt::format(
          "{}{}: {} of {} sequences and {} of {} sampled 24-grams were in the calibration text of "
          "{}",
          found.empty() ? "" : "; ", what, identical.size(), text.sequences.size(),
          overlap.shared_ngrams, overlap.total_ngrams, entries.tags[i]);
    }
    Value entry;
    entry["trace"] = what;
    entry["zoo"] = entries.tags[i];
    entry["known"] = overlap.known;
    entry["shared_ngrams"] = static_cast<int64_t>(overlap.shared_ngrams);
    entry["total_ngrams"] = static_cast<int64_t>(overlap.total_ngrams);
    entry["identical_sequences"] = std::move(identical);
    list.push_back(std::move(entry));
  }
  if (found.empty()) return list;
  if (!allowed) {
    throw Error(ErrorCode::kMismatch, found,
                "use text that calibration has not seen, or --allow-overlap to measure anyway");
  }
  notes.push_back("the text was seen in calibration: " + found);
  return list;
}

std::map<int, LayerShape> ShapesOf(const TraceSet& set) {
  std::map<int, LayerShape> shapes;
  for (const TraceReader& trace : set.traces()) {
    for (const int layer : trace.header().layers) shapes.emplace(layer, trace.shape(layer));
  }
  return shapes;
}

}  // namespace oscar
