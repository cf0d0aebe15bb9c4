// A RotationZoo entry: a pair of rotation files as serving engines load them, and its manifest.
// docs/formats/zoo.md is the specification.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/value.h"

namespace oscar {

// One layer of a rotation file. x' = x R with row vectors.
struct ZooLayer {
  int64_t heads = 0;  // 0: one [D, D] for all heads (format_version 1); else [H_kv, D, D] (2)
  int64_t dim = 0;
  std::vector<float> rotation;     // [D, D] or [heads, D, D], row-major
  std::vector<float> eigenvalues;  // [D] ascending, or empty (format_version 2, identity files)
  DType stored_as = DType::kF32;   // element type of `rotation` in the file that was read
};

// One rotation file, K or V.
struct ZooFile {
  Value format_version = 1;            // integer, or a string such as "identity-v1"
  std::string objective;               // "qqt_r_h_pbr", "sst_r_h_pbr", "hadamard", ...
  std::string source_grouping;         // "layer" or "per_kv_head"
  std::map<int64_t, ZooLayer> layers;  // by global layer id
  // Entries of the top-level dict that are none of the above, read and written back unchanged
  // where they are plain values (calibration metadata of other producers).
  Value extra;
  // Paths of top-level entries that hold tensors or odd keys and are therefore not in `extra`.
  std::vector<std::string> unreadable;
};

// Reads format_version 1 and 2 and their published variants: layer keys as integers or decimal
// text, missing eigenvalues, a text as format_version, shared storages, any strides and floating
// element types, extra top-level entries. Never executes anything. Other dialects are refused by
// name. Throws Error(kIo / kFormat / kUnsupported) naming file, layer and reason.
ZooFile ReadZooFile(const std::filesystem::path& path);

// Whether equal tensors of several layers are stored once (as the official Hadamard files do) or
// each on its own.
enum class ZooAliases { kExpand, kShare };

// Writes exactly what the official loader expects: readable with torch.load(weights_only=True),
// one contiguous float32 storage per tensor (unless kShare), keys in the official order, archive
// root equal to the file name without extension. Deterministic bytes. Throws Error(kIo), or
// Error(kUnsupported) when `unreadable` entries would be lost.
void WriteZooFile(const std::filesystem::path& path, const ZooFile& file,
                  ZooAliases aliases = ZooAliases::kExpand);

enum class ZooSide { kKey, kValue };
// Which side the objective belongs to: "qqt_*", "ktk_*", "identity-k" keys, "sst_*", "svsv_*",
// "vtv_*", "identity-v" values; nullopt for objectives that do not tell ("hadamard", ...).
std::optional<ZooSide> SideOfObjective(const std::string& objective);

// A folder with k_rotation_*.pt, v_rotation_*.pt and manifest.json (`oscar.zoo/1`). Folders of
// other producers have no manifest.
struct ZooEntry {
  std::filesystem::path folder;
  std::filesystem::path key_path, value_path;
  ZooFile key, value;
  std::optional<Value> manifest;

  // Clip ratio c in (0, 1] of a layer from the manifest (`clip.key["<layer>"]`); nullopt when it
  // holds none. Throws Error(kFormat) when the manifest holds something else.
  std::optional<double> KeyClip(int64_t layer) const;
  std::optional<double> ValueClip(int64_t layer) const;
  std::string Tag() const;  // last component of the folder
};

// Finds the pair in a folder: the files its manifest names, else exactly one k_*.pt and one v_*.pt
// (names of all published dialects: k_rotation*.pt, k_perhead.pt). Refuses swapped K and V by
// objective (kMismatch), K and V of different calibrations (kMismatch), half a pair and ambiguity
// (kFormat), a manifest whose sizes or hashes do not match its files (kMismatch).
ZooEntry ReadZooEntry(const std::filesystem::path& folder);

// Writes the pair and the manifest as one unit: temporary folder, sync, rename. The manifest gets
// `schema` and, for both files, name, size and SHA-256. Creates missing parent folders. Throws
// Error(kIo) when `folder` exists and not `force`, Error(kMismatch) when K and V are swapped.
void WriteZooEntry(const std::filesystem::path& folder, const ZooFile& key, const ZooFile& value,
                   const std::string& key_name, const std::string& value_name, Value manifest,
                   bool force);

// Engines keep a cache in pages of so many tokens (4 * sizeof(bfloat16)), and both windows must be
// multiples of it.
inline constexpr int64_t kServedPageTokens = 8;

// Replacing an entry removes its folder, so nothing but its files may be in it. Throws Error(kIo).
void RequireReplaceableEntry(const std::filesystem::path& folder);

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
// Worst over the heads of a layer; infinity when an entry is not finite.
ZooOrthogonality MeasureOrthogonality(const ZooLayer& layer);

// Gates of validation. Rounding entries with unit roundoff u moves R R^T by at most 2u: 1.2e-7 for
// float32 (1e-5 leaves room for eigensolvers in float32), 1e-3 for float16, 7.8e-3 for bfloat16,
// whose errors average out: published files stay below 3e-3.
inline constexpr double kOrthogonalityStoredGate = 1e-5;
inline constexpr double kOrthogonalityFloat16Gate = 1e-3;
inline constexpr double kOrthogonalityServedGate = 5e-3;

// Checks of one file: finite entries, orthogonality as stored (the gate follows the stored element
// type) and as served, eigenvalues ascending and not negative, no calibrated objective over
// rotations that carry no calibration, no two layers with one rotation.
std::vector<ZooFinding> ValidateFile(const ZooFile& file, const std::string& name);
// Both files, and that they belong together: layer ids, sides, manifest against files.
std::vector<ZooFinding> ValidateEntry(const ZooEntry& entry);

}  // namespace oscar
