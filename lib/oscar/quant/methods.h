// The table of methods: each row makes a KvScheme for a model. A new method is one row here and, if
// it needs one, a file of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/quant/scheme.h"

namespace oscar {

// Rotation of one side of one layer: heads 0 means one [dim, dim] for all KV heads, otherwise
// [heads, dim, dim]; row-major, x' = x R.
struct RotationData {
  int64_t heads = 0;
  int64_t dim = 0;
  std::vector<float> rotation;
  std::optional<double> clip;  // calibrated clip ratio of this layer
};

// Rotations of a whole model, by global layer id: a zoo entry as plain data.
struct ModelRotations {
  std::string tag;  // distinguishes several entries in tables
  std::map<int, RotationData> key, value;
};

// The public recipe (method.md 4.3).
inline constexpr double kPublicKeyClip = 0.96;
inline constexpr double kPublicValueClip = 0.92;

// What all methods of one comparison share.
struct MethodSettings {
  Windows windows;
  bool use_windows = true;
  int64_t group_size = 0;  // 0: one group per head
  ScaleType scale_type = ScaleType::kF32;
  ClipMode clip_mode = ClipMode::kSort;
  bool as_served = false;
  // For methods that clip: these instead of a rotation's own ratios or the public ones.
  std::optional<double> key_clip, value_clip;
};

struct MethodRow {
  std::string_view name;   // in --schemes and in reports
  std::string_view label;  // what a person reads
  bool quantises;          // has a matched-noise control
  bool needs_rotations;    // one scheme per ModelRotations given
  bool rotates_hadamard;
  bool clips;
  Codebook codebook;
};

// bf16, naive, hadamard, clip-only, hadamard-clip, oscar, oscar-lloyd-max; in this order.
std::span<const MethodRow> MethodTable();
// Throws Error(kUsage) listing the known names.
const MethodRow& MethodFromName(std::string_view name);

// The scheme of a row for the layers of a model. `rotations` is required by rows that need them and
// ignored by the others; name and label then carry its tag. Throws Error(kUsage) when the settings
// do not fit (group size, clip), Error(kMismatch) naming the layer when the rotations lack a layer
// or have another head dim or head count.
KvScheme BuildScheme(const MethodRow& row, const std::map<int, LayerShape>& layers,
                     const MethodSettings& settings, const ModelRotations* rotations);

// The scheme whose errors are replaced by noise of the same norm: "<name>+noise".
KvScheme MatchedNoiseControl(KvScheme scheme, uint64_t seed);

}  // namespace oscar
