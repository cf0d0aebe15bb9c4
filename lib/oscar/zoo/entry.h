// A RotationZoo entry: a pair of rotation files as serving engines load them, and its manifest.
// docs/formats/zoo.md is the specification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/value.h"

namespace oscar {

// One layer of a rotation file. x' = x R with row vectors.
struct ZooLayer {
  int64_t heads = 0;  // 0: one [D, D] for all heads (format_version 1); else [H_kv, D, D] (2)
  int64_t dim = 0;
  std::vector<float> rotation;     // [D, D] or [heads, D, D], row-major
  std::vector<float> eigenvalues;  // [D] ascending, or empty (format_version 2, identity files)
};

// One rotation file, K or V.
struct ZooFile {
  Value format_version = 1;     // integer, or a string such as "identity-v1"
  std::string objective;        // "qqt_r_h_pbr", "sst_r_h_pbr", "hadamard", ...
  std::string source_grouping;  // "layer" or "per_kv_head"
  std::map<int64_t, ZooLayer> layers;  // by global layer id
  // Entries of the top-level dict that are none of the above, read and written back unchanged
  // where they are plain values (calibration metadata of other producers).
  Value extra;
};

// Reads format_version 1 and 2 and their published variants. Never executes anything.
// Throws Error(kIo / kFormat / kUnsupported) naming file, member and reason.
ZooFile ReadZooFile(const std::filesystem::path& path);

// Writes exactly what the official loader expects: readable with torch.load(weights_only=True),
// one contiguous float32 storage per tensor, keys in the official order. Deterministic bytes.
void WriteZooFile(const std::filesystem::path& path, const ZooFile& file);

enum class ZooSide { kKey, kValue };
// Which side the objective belongs to: "qqt_*", "ktk_*" keys, "sst_*", "svsv_*", "vtv_*" values;
// nullopt for data-free objectives ("hadamard", "identity").
std::optional<ZooSide> SideOfObjective(const std::string& objective);

// A folder with k_rotation_*.pt, v_rotation_*.pt and manifest.json (`oscar.zoo/1`). Folders of
// other producers have no manifest.
struct ZooEntry {
  std::filesystem::path folder;
  std::filesystem::path key_path, value_path;
  ZooFile key, value;
  std::optional<Value> manifest;

  // Clip ratio c of a layer (and KV head) from the manifest; nullopt when it holds none.
  std::optional<double> KeyClip(int64_t layer) const;
  std::optional<double> ValueClip(int64_t layer) const;
  std::string Tag() const;  // last component of the folder
};

// Finds the pair in a folder: exactly one k_* and one v_* file (names of all published dialects:
// k_rotation*.pt, k_perhead.pt). Refuses swapped K and V by objective (kMismatch), half a pair and
// ambiguity (kFormat), a manifest whose hashes do not match its files (kMismatch).
ZooEntry ReadZooEntry(const std::filesystem::path& folder);

// Writes the pair and the manifest as one unit: temporary folder, sync, rename. The manifest gets
// the file names and SHA-256 of both files. Throws Error(kIo) when `folder` exists and not `force`.
void WriteZooEntry(const std::filesystem::path& folder, const ZooFile& key, const ZooFile& value,
                   const std::string& key_name, const std::string& value_name, Value manifest,
                   bool force);

// One finding of a validation.
struct ZooFinding {
  bool error = false;  // false: a note
  std::string where;   // file and layer
  std::string what;
};

struct ZooOrthogonality {
  double as_stored = 0;  // max |R R^T - I| in float64 of the float32 matrix
  double as_served = 0;  // the same after rounding R to bfloat16, as engines load it
};
ZooOrthogonality MeasureOrthogonality(const ZooLayer& layer);

// Finite entries, shapes, orthogonality gates (1e-5 as stored, 5e-3 as served), ascending
// eigenvalues, non-negative, K and V agree in layer ids.
std::vector<ZooFinding> ValidateEntry(const ZooEntry& entry);
std::vector<ZooFinding> ValidateFile(const ZooFile& file, const std::string& name);

}  // namespace oscar
