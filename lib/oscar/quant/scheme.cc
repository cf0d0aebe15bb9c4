#include "oscar/quant/scheme.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/quant/windows.h"

namespace oscar {
namespace {

int64_t BitsOf(ScaleType type) { return type == ScaleType::kF32 ? 32 : 16; }

constexpr double kExactBits = 16;

constexpr std::array kScaleTypes = {std::pair{ScaleType::kF32, std::string_view("f32")},
                                    std::pair{ScaleType::kF16, std::string_view("f16")},
                                    std::pair{ScaleType::kBF16, std::string_view("bf16")}};

}  // namespace

std::string_view ScaleTypeName(ScaleType type) {
  for (const auto& [known, name] : kScaleTypes) {
    if (type == known) return name;
  }
  FailCheck("every scale type has a name", __FILE__, __LINE__);
}

std::optional<ScaleType> ScaleTypeFromName(std::string_view name) {
  for (const auto& [type, known] : kScaleTypes) {
    if (name == known) return type;
  }
  return std::nullopt;
}

void QuantiserSpec::Validate(int64_t dim) const {
  const auto refuse = [](const std::string& what) { throw Error(ErrorCode::kUsage, what); };
  if (bits != 2 && bits != 16) {
    refuse("quantiser bits: expected 2 or 16, found " + std::to_string(bits));
  }
  if (bits == 16) return;
  if (dim < 4 || dim % 4 != 0) {
    throw Error(ErrorCode::kUnsupported,
                "head dim " + std::to_string(dim) +
                    " cannot be packed in 2 bits: expected a multiple of 4");
  }
  if (group_size < 0 || (group_size > 0 && dim % group_size != 0)) {
    refuse("group size " + std::to_string(group_size) + " does not divide the head dim " +
           std::to_string(dim));
  }
  if (!(clip >= 0 && clip <= 1)) {
    refuse("clip ratio: expected a number from 0 (off) to 1, found " + std::to_string(clip));
  }
  if (codebook == Codebook::kLloydMax && group_size != 0 && group_size != dim) {
    refuse("the Lloyd-Max mode needs one group per row, found group size " +
           std::to_string(group_size) + " for head dim " + std::to_string(dim));
  }
}

double QuantiserSpec::BitsPerElement(int64_t dim) const {
  if (bits == 16) return kExactBits;
  const int64_t group = group_size == 0 ? dim : group_size;
  return bits + 2.0 * static_cast<double>(BitsOf(scale_type)) / static_cast<double>(group);
}

const LayerScheme& KvScheme::ForLayer(int layer) const {
  const auto found = layers.find(layer);
  if (found == layers.end()) {
    throw Error(ErrorCode::kMismatch,
                "scheme " + name + " has nothing for layer " + std::to_string(layer));
  }
  return found->second;
}

double KvScheme::BitsPerElement(const LayerShape& shape, int layer, int64_t tokens) const {
  const LayerScheme& scheme = ForLayer(layer);
  const auto k_dim = static_cast<double>(shape.k_dim);
  const auto v_dim = static_cast<double>(shape.v_dim);
  const double quantised = (scheme.key.quantiser.BitsPerElement(shape.k_dim) * k_dim +
                            scheme.value.quantiser.BitsPerElement(shape.v_dim) * v_dim) /
                           (k_dim + v_dim);
  if (!use_windows || tokens == 0) return quantised;
  const RegionSizes regions = CountRegions(tokens, windows, shape.window);
  const auto middle = static_cast<double>(regions.middle);
  const auto exact = static_cast<double>(regions.sink + regions.recent);
  return (quantised * middle + kExactBits * exact) / (middle + exact);
}

double MeanBitsPerElement(const KvScheme& scheme, const std::map<int, LayerShape>& layers,
                          int64_t tokens) {
  double bits = 0;
  double elements = 0;
  for (const auto& [layer, shape] : layers) {
    const int64_t seen = shape.window > 0 ? std::min(shape.window, tokens) : tokens;
    const auto weight = static_cast<double>(seen * shape.kv_heads * (shape.k_dim + shape.v_dim));
    bits += weight * scheme.BitsPerElement(shape, layer, tokens);
    elements += weight;
  }
  return bits / elements;
}

}  // namespace oscar
