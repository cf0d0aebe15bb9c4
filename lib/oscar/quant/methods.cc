#include "oscar/quant/methods.h"

#include <array>

#include "oscar/core/error.h"
#include "oscar/quant/transform.h"

namespace oscar {
namespace {

// name, label, quantises, needs_rotations, rotates_hadamard, clips, codebook
constexpr std::array kMethods = {
    MethodRow{"bf16", "BF16 cache", false, false, false, false, Codebook::kMinMax},
    MethodRow{"naive", "INT2", true, false, false, false, Codebook::kMinMax},
    MethodRow{"hadamard", "INT2, Hadamard (QuaRot)", true, false, true, false, Codebook::kMinMax},
    MethodRow{"clip-only", "INT2, clipping", true, false, false, true, Codebook::kMinMax},
    MethodRow{"hadamard-clip", "INT2, Hadamard and clipping", true, false, true, true,
              Codebook::kMinMax},
    MethodRow{"oscar", "OSCAR", true, true, false, true, Codebook::kMinMax},
    MethodRow{"oscar-lloyd-max", "OSCAR, Lloyd-Max mode", true, true, false, true,
              Codebook::kLloydMax},
};

struct SideInput {
  const char* what;  // "K" or "V"
  int64_t dim;
  const std::map<int, RotationData>* rotations;
  std::optional<double> clip;
  double public_clip;
};

const RotationData& RotationOf(const SideInput& side, int layer, int64_t kv_heads) {
  const std::string where = std::string(side.what) + " rotation of layer " + std::to_string(layer);
  const auto found = side.rotations->find(layer);
  if (found == side.rotations->end()) {
    throw Error(ErrorCode::kMismatch, "no " + where,
                "the rotations were made for another model or other layers");
  }
  const RotationData& data = found->second;
  if (data.dim != side.dim) {
    throw Error(ErrorCode::kMismatch, where + ": expected head dim " + std::to_string(side.dim) +
                                          ", found " + std::to_string(data.dim));
  }
  if (data.heads != 0 && data.heads != kv_heads) {
    throw Error(ErrorCode::kMismatch, where + ": expected " + std::to_string(kv_heads) +
                                          " KV heads, found " + std::to_string(data.heads));
  }
  return data;
}

SideScheme BuildSide(const MethodRow& row, const MethodSettings& settings, const SideInput& side,
                     int layer, int64_t kv_heads) {
  SideScheme scheme;
  scheme.as_served = settings.as_served;
  QuantiserSpec& quantiser = scheme.quantiser;
  if (!row.quantises) {
    quantiser.bits = 16;
    return scheme;
  }
  quantiser.group_size = settings.group_size;
  quantiser.scale_type = settings.scale_type;
  quantiser.clip_mode = settings.clip_mode;
  quantiser.codebook = row.codebook;
  std::optional<double> own_clip;
  if (row.needs_rotations) {
    const RotationData& data = RotationOf(side, layer, kv_heads);
    scheme.transform = RotationTransform(data.rotation, data.heads, data.dim);
    own_clip = data.clip;
  } else if (row.rotates_hadamard) {
    scheme.transform = HadamardTransform(side.dim);
  }
  if (row.clips) quantiser.clip = side.clip.value_or(own_clip.value_or(side.public_clip));
  quantiser.Validate(side.dim);
  return scheme;
}

}  // namespace

std::span<const MethodRow> MethodTable() { return kMethods; }

const MethodRow& MethodFromName(std::string_view name) {
  std::string known;
  for (const MethodRow& row : kMethods) {
    if (row.name == name) return row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error(ErrorCode::kUsage, "unknown scheme '" + std::string(name) + "'", "known: " + known);
}

KvScheme BuildScheme(const MethodRow& row, const std::map<int, LayerShape>& layers,
                     const MethodSettings& settings, const ModelRotations* rotations) {
  KvScheme scheme;
  scheme.name = row.name;
  scheme.label = row.label;
  scheme.windows = settings.windows;
  scheme.use_windows = settings.use_windows;
  if (row.needs_rotations) {
    OSCAR_CHECK(rotations != nullptr);
    if (!rotations->tag.empty()) {
      scheme.name += ":" + rotations->tag;
      scheme.label += " (" + rotations->tag + ")";
    }
  }
  for (const auto& [layer, shape] : layers) {
    const SideInput key{"K", shape.k_dim, rotations ? &rotations->key : nullptr, settings.key_clip,
                        kPublicKeyClip};
    const SideInput value{"V", shape.v_dim, rotations ? &rotations->value : nullptr,
                          settings.value_clip, kPublicValueClip};
    scheme.layers[layer] = {BuildSide(row, settings, key, layer, shape.kv_heads),
                            BuildSide(row, settings, value, layer, shape.kv_heads)};
  }
  return scheme;
}

KvScheme MatchedNoiseControl(KvScheme scheme, uint64_t seed) {
  scheme.name += "+noise";
  scheme.label = "noise of the same norm as " + scheme.label;
  scheme.matched_noise = true;
  scheme.noise_seed = seed;
  return scheme;
}

}  // namespace oscar
