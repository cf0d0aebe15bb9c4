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
  const char* zoo;    // below "model" of the zoo manifest
  const char* trace;  // in the trace manifest
  bool identifies;    // equal values prove the same model
};
constexpr ModelKey kModelKeys[] = {{"id", "model_id", false},
                                   {"config_hash", "config_hash", true},
                                   {"weights_fingerprint", "weights_fingerprint", true}};

void CheckSide(const ZooEntry& entry, const ZooFile& file, bool key, const TraceSet& set) {
  for (const auto& [layer, shape] : ShapesOf(set)) {
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
      throw Error(ErrorCode::kMismatch, fmt::format("{}: head dim {}, the traces have {}", where,
                                                    found->second.dim, dim));
    }
    if (found->second.heads != 0 && found->second.heads != shape.kv_heads) {
      throw Error(ErrorCode::kMismatch, fmt::format("{}: {} KV heads, the traces have {}", where,
                                                    found->second.heads, shape.kv_heads));
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

}  // namespace

CalibrationText CalibrationTextOf(const ZooEntry& entry) {
  CalibrationText text;
  const Value* calibration = entry.manifest ? entry.manifest->Find("calibration") : nullptr;
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

void CheckSameModel(const ZooEntry& entry, const TraceSet& set, std::vector<std::string>& notes) {
  const Value* model = entry.manifest ? entry.manifest->Find("model") : nullptr;
  const Value& trace = set.traces().front().header().manifest;
  bool identified = false;
  for (const ModelKey& key : kModelKeys) {
    const std::string stated = model == nullptr ? "" : TextOf(model->Find(key.zoo));
    const std::string found = TextOf(trace.Find(key.trace));
    if (stated.empty() || found.empty()) continue;
    identified = identified || key.identifies;
    if (stated == found) continue;
    throw Error(ErrorCode::kMismatch,
                fmt::format("{}: made for a model with {} '{}', the traces have '{}'",
                            entry.folder.string(), key.trace, stated, found),
                "rotations fit the model they were calibrated on, even where shapes agree");
  }
  CheckSide(entry, entry.key, true, set);
  CheckSide(entry, entry.value, false, set);
  if (!identified) {
    notes.push_back(fmt::format(
        "{}: its model is unknown, only layer numbers and head dims were compared", entry.Tag()));
  }
  if (entry.key.layers.size() > set.layers().size()) {
    notes.push_back(fmt::format("{}: only {} of its {} layers are in the traces", entry.Tag(),
                                set.layers().size(), entry.key.layers.size()));
  }
}

ModelRotations RotationsOf(const ZooEntry& entry, const std::string& tag) {
  return {tag, SideData(entry.key, entry, true), SideData(entry.value, entry, false)};
}

std::vector<std::string> UniqueTags(const std::vector<ZooEntry>& entries) {
  std::vector<std::string> tags;
  for (const ZooEntry& entry : entries) {
    const auto same = std::ranges::count_if(
        entries, [&](const ZooEntry& other) { return other.Tag() == entry.Tag(); });
    std::string tag = entry.Tag();
    if (same > 1) {
      tag = entry.folder.lexically_normal().parent_path().filename().string() + "/" + tag;
    }
    while (std::ranges::find(tags, tag) != tags.end()) tag += "'";
    tags.push_back(tag);
  }
  return tags;
}

std::map<int, LayerShape> ShapesOf(const TraceSet& set) {
  std::map<int, LayerShape> shapes;
  for (const TraceReader& trace : set.traces()) {
    for (const int layer : trace.header().layers) shapes.emplace(layer, trace.shape(layer));
  }
  return shapes;
}

}  // namespace oscar
