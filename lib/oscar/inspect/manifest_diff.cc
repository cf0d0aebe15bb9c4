#include "oscar/inspect/manifest_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "oscar/core/printable.h"
#include "oscar/inspect/ranges.h"

namespace oscar {
namespace {

void Collect(const Value& first, const Value& second, const std::string& path,
             std::vector<Difference>& found) {
  if (first == second) return;
  if (!first.is_object() || !second.is_object()) {
    found.push_back({path, first, second});
    return;
  }
  std::set<std::string> keys;
  for (const auto& [key, unused] : first.AsObject()) keys.insert(key);
  for (const auto& [key, unused] : second.AsObject()) keys.insert(key);
  const auto member = [](const Value& value, const std::string& key) {
    const Value* item = value.Find(key);
    return item == nullptr ? Value() : *item;
  };
  for (const std::string& key : keys) {
    Collect(member(first, key), member(second, key), path.empty() ? key : path + "." + key, found);
  }
}

// Takes a member out, so that it is not listed a second time.
Value Take(Value& manifest, const char* key) {
  const Value* found = manifest.Find(key);
  if (found == nullptr) return {};
  Value taken = *found;
  manifest.MutableObject().erase(key);
  return taken;
}

std::string RatioText(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{}", *ratio) : "none";
}

// One line for all layers with the same two ratios.
void CompareRatios(const char* name, const ZooFile& layers, const ZooEntry& first,
                   const ZooEntry& second, std::optional<double> (ZooEntry::*ratio)(int64_t) const,
                   std::vector<std::string>& lines) {
  std::map<std::pair<std::optional<double>, std::optional<double>>, std::vector<int64_t>> pairs;
  for (const auto& [layer, unused] : layers.layers) {
    const std::optional<double> a = (first.*ratio)(layer), b = (second.*ratio)(layer);
    if (a != b) pairs[{a, b}].push_back(layer);
  }
  for (const auto& [pair, ids] : pairs) {
    lines.push_back(fmt::format("{} of layer{} {}: {} != {}", name, ids.size() == 1 ? "" : "s",
                                RangesOf(ids), RatioText(pair.first), RatioText(pair.second)));
  }
}

// 0 is one group per head, and so is the head's own size.
bool SameGroups(const Value& a, const Value& b, const ZooEntry& entry) {
  if (!a.is_int() || !b.is_int() || (a.AsInt() != 0 && b.AsInt() != 0)) return a == b;
  const int64_t group = std::max(a.AsInt(), b.AsInt());
  for (const ZooFile* file : {&entry.key, &entry.value}) {
    for (const auto& [unused, layer] : file->layers) {
      if (group != 0 && layer.dim != group) return false;
    }
  }
  return true;
}

// The one pair of clip ratios that an engine without ratios per layer gets.
Value SinglePair(Value& manifest) {
  Value pair;
  const Value* clip = manifest.Find("clip");
  if (clip == nullptr || clip->Find("single") == nullptr) return pair;
  Value& single = manifest["clip"]["single"];
  for (const char* side : {"key", "value"}) pair[side] = Take(single, side);
  return pair;
}

}  // namespace

std::vector<Difference> FindDifferences(const Value& first, const Value& second) {
  std::vector<Difference> found;
  Collect(first, second, "", found);
  return found;
}

std::string FullLine(const Difference& difference) {
  return fmt::format("{}: {} != {}", difference.path, difference.first.ToJson(),
                     difference.second.ToJson());
}

std::string BriefLine(const Difference& difference) {
  return fmt::format("{}: {} != {}", Printable(difference.path), Brief(difference.first),
                     Brief(difference.second));
}

std::string Brief(const Value& value) {
  constexpr size_t kMost = 8, kLongest = 120;
  const std::string text = value.ToJson();
  const auto is_long = [&](size_t count) { return count > kMost || text.size() > kLongest; };
  if (value.is_array() && is_long(value.AsArray().size())) {
    return fmt::format("list of {}", value.AsArray().size());
  }
  if (value.is_object() && is_long(value.AsObject().size())) {
    return fmt::format("table of {}", value.AsObject().size());
  }
  return Printable(text);
}

ManifestDiff CompareManifests(const ZooEntry& first, const ZooEntry& second) {
  Value a = *first.manifest, b = *second.manifest;
  ManifestDiff diff;
  Value settings_a, settings_b;
  for (const auto& [manifest, settings] : {std::pair{&a, &settings_a}, {&b, &settings_b}}) {
    for (const char* key : {"windows", "group_size", "scale_dtype", "targets", "grouping"}) {
      (*settings)[key] = Take(*manifest, key);
    }
    (*settings)["clip"]["single"] = SinglePair(*manifest);
    for (const char* key : {"volatile", "files"}) Take(*manifest, key);
  }
  for (const Difference& one : FindDifferences(settings_a, settings_b)) {
    if (one.path == "group_size" && SameGroups(one.first, one.second, first)) continue;
    diff.settings.push_back(FullLine(one));
  }
  CompareRatios("clip.key", first.key, first, second, &ZooEntry::KeyClip, diff.settings);
  CompareRatios("clip.value", first.value, first, second, &ZooEntry::ValueClip, diff.settings);
  for (Value* manifest : {&a, &b}) {
    if (manifest->Find("clip") == nullptr || !manifest->At("clip").is_object()) continue;
    for (const char* side : {"key", "value"}) Take((*manifest)["clip"], side);
  }
  diff.rest = FindDifferences(a, b);
  return diff;
}

std::string RestText(const std::vector<Difference>& rest) {
  constexpr size_t kListed = 4;
  std::map<std::string, std::vector<const Difference*>> parts;
  for (const Difference& one : rest) {
    size_t end = one.path.find('.');
    if (one.path.starts_with("clip.")) end = one.path.find('.', end + 1);
    parts[one.path.substr(0, end)].push_back(&one);
  }
  std::string text;
  for (const auto& [name, differences] : parts) {
    if (differences.size() > kListed) {
      text += fmt::format("  {}: {} differ\n", Printable(name), differences.size());
      continue;
    }
    for (const Difference* one : differences) text += fmt::format("  {}\n", BriefLine(*one));
  }
  return text;
}

}  // namespace oscar
