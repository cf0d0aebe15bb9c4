// What turns keys and values into stored bits, as a value: transform + clip rule + quantiser +
// windows. The rows of the table of methods (methods.h) are made of these; nothing else knows a
// method by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/view.h"

namespace oscar {

// Type in which scale and zero are stored; codes are always computed from the float32 values.
enum class ScaleType { kF32, kF16, kBF16 };
// "f32", "f16" or "bf16", in options, manifests and reports; nullopt for another text.
std::string_view ScaleTypeName(ScaleType type);
std::optional<ScaleType> ScaleTypeFromName(std::string_view name);
// kSort: exact order statistic (the public prefill writer). kBisect: the public decode flush.
enum class ClipMode { kSort, kBisect };
// kMinMax: affine INT2 between the group's extremes. kLloydMax: the public "Lloyd-Max" mode, only
// for one group per row with clipping on.
enum class Codebook { kMinMax, kLloydMax };

// A quantiser of one row x [D] of float32 (method.md 4 and 5).
struct QuantiserSpec {
  int bits = 2;            // 16: stored in the model's own 16-bit type, not quantised
  int64_t group_size = 0;  // G consecutive channels share (scale, zero); 0: one group of D
  double clip = 0;         // c in [0, 1]: threshold sorted(|x|)[min(floor(c D), D - 1)]; 0: off
  ClipMode clip_mode = ClipMode::kSort;
  ScaleType scale_type = ScaleType::kF32;
  Codebook codebook = Codebook::kMinMax;

  // Throws Error(kUsage) when it does not fit rows of `dim` channels, naming the value, and
  // Error(kUnsupported) when no 2-bit quantiser does.
  void Validate(int64_t dim) const;
  // Stored bits per element of a quantised row of `dim` channels, metadata included.
  double BitsPerElement(int64_t dim) const;
};

// A linear map of rows, x' = x R, with x = x' R^-1 on the way back. Identity when empty.
struct Transform {
  // [D, D] float32 row-major, one for all heads or one per KV head. Empty: identity.
  std::vector<std::vector<float>> matrices;
  // Inverses in the same order; empty: the transposes (orthogonal maps).
  std::vector<std::vector<float>> inverses;
  int64_t dim = 0;

  bool identity() const { return matrices.empty(); }
  const std::vector<float>& ForHead(int64_t head) const {
    return matrices[matrices.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
};

// One side (keys or values) of one layer.
struct SideScheme {
  Transform transform;
  QuantiserSpec quantiser;
  // As engines hold it: the rotation is rounded to bfloat16 (both ways) and so are rotated rows,
  // before they are quantised and in the windows, whose rows are stored rotated too. Without it the
  // rotation is exact to float32 and window rows are the model's own. No effect without a rotation.
  bool as_served = false;
};

struct LayerScheme {
  SideScheme key;
  SideScheme value;
};

// A KV-cache method applied to a model.
struct KvScheme {
  std::string name;   // row name in tables and JSON, for example "hadamard" or "oscar:<tag>"
  std::string label;  // what a person reads
  Windows windows;
  bool use_windows = true;  // false: every position is quantised
  // Replaces quantisation by Gaussian noise of this scheme's error norm (the matched control).
  bool matched_noise = false;
  uint64_t noise_seed = 0;
  std::map<int, LayerScheme> layers;

  // Throws Error(kMismatch) naming the layer when the scheme has none for it.
  const LayerScheme& ForLayer(int layer) const;
  // Mean stored bits per element of K and V that the last of `tokens` tokens sees, windows (16
  // bits) and metadata included.
  double BitsPerElement(const LayerShape& shape, int layer, int64_t tokens) const;
};

// The same over all layers, each weighted by the elements that the last token sees of it.
double MeanBitsPerElement(const KvScheme& scheme, const std::map<int, LayerShape>& layers,
                          int64_t tokens);

// What the cache gives back for rows x [tokens, H_kv, D] in the original coordinates:
// x_hat = dequantise(quantise(x R)) R^-1. Windows are not applied here. `threads` for the loop.
// x_hat may be x itself. Throws Error(kMismatch) when the transform's size or head count does not
// fit, Error(kNumeric) naming token and head when a row is not finite.
void Reconstruct(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                 int threads);

// What the exact windows give back: x itself, or bfloat16(x R) R^-1 when `side` is as served and
// has a rotation. Errors as for Reconstruct.
void ReconstructWindows(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                        int threads);
// True when ReconstructWindows changes anything.
bool WindowsAreInexact(const SideScheme& side);

// Gaussian noise instead of quantisation: x_hat = x + n with, for every (token, head), the same
// Frobenius norm as the reconstruction error of `side` on that row. Seeded by (seed, token, head).
void ReconstructMatchedNoise(const SideScheme& side, HeadRows<const float> x, HeadRows<float> x_hat,
                             uint64_t seed, int threads);

// The same when the scheme's reconstruction is known already. x_hat may be `reconstructed` itself.
void MatchedNoise(HeadRows<const float> x, HeadRows<const float> reconstructed,
                  HeadRows<float> x_hat, uint64_t seed, int threads);

}  // namespace oscar
