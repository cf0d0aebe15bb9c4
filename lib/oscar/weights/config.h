// Model configurations from config.json and from GGUF metadata.
#pragma once

#include <string>

#include "oscar/core/value.h"
#include "oscar/weights/architecture.h"
#include "oscar/weights/model_weights.h"
#include "oscar/weights/tensor_set.h"

namespace oscar {

struct ParsedConfig {
  const Architecture* architecture = nullptr;
  ModelConfig config;
};

// `source` names the file in messages. Absent fields take the values that transformers gives them.
// Throws Error(kUnsupported) for an unknown architecture, a field value or an unknown field that
// changes the mathematics, Error(kFormat) for a missing or malformed field; each names the field.
ParsedConfig ParseHfConfig(const Value& json, const std::string& source);

// Likewise from GGUF metadata; whether there are biases and an LM head, and the divisors of
// rope_freqs.weight, are read from the tensors.
ParsedConfig ParseGgufConfig(const Value& metadata, const TensorSet& tensors,
                             const std::string& source);

// Checks that hold for every source (head counts, even head_dim) and fills layer_uses_window.
// Throws Error(kFormat) or Error(kUnsupported).
void CheckConfig(const ModelConfig& config, const std::string& source);

// SHA-256 over what decides the computation: sizes, biases, norms, windows, activation and
// frequencies (to five digits, since files of the two formats round them differently). Names,
// special tokens and the context length are left out, so that a GGUF conversion of a model has the
// hash of the model.
std::string HashConfig(const ModelConfig& config);

// Bounds on what a configuration may claim, far above any model.
inline constexpr int64_t kLargestDim = int64_t{1} << 24;
inline constexpr int64_t kLargestLayers = 10'000;
inline constexpr int64_t kLargestVocab = int64_t{1} << 30;
inline constexpr int64_t kLargestPositions = int64_t{1} << 40;

}  // namespace oscar
