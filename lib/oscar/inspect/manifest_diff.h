// What two manifests, or two descriptions of files, say differently.
#pragma once

#include <string>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/zoo/entry.h"

namespace oscar {

// One place at which two values differ; a missing one is null.
struct Difference {
  std::string path;  // "windows.sink"
  Value first, second;
};
// All of them, in the order of keys. Arrays are compared as wholes.
std::vector<Difference> FindDifferences(const Value& first, const Value& second);

// "windows.sink: 64 != 128": every byte of the values, or for a terminal with long lists and texts
// shortened each on its own.
std::string FullLine(const Difference& difference);
std::string BriefLine(const Difference& difference);

// A value in a few words: long lists and tables by their size.
std::string Brief(const Value& value);

struct ManifestDiff {
  // How a cache is served: windows, group size, type of scales, clip ratios, targets, grouping.
  std::vector<std::string> settings;
  // Everything else, but not `files`, which are compared by content, and `volatile`.
  std::vector<Difference> rest;
};
// Both entries have a manifest. Throws Error(kFormat) when a clip ratio is none.
ManifestDiff CompareManifests(const ZooEntry& first, const ZooEntry& second);

// The rest for a terminal: parts with more than a few differences by their number.
std::string RestText(const std::vector<Difference>& rest);

}  // namespace oscar
