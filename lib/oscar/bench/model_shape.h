// Shapes of models that a benchmark stands for: sizes only, no weights.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "oscar/cuda/plan.h"

namespace oscar {

struct ModelShape {
  std::string name;
  int64_t layers = 0;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  // Of the whole model; 0 where only attention is known (explicit heads).
  int64_t hidden = 0, vocabulary = 0;
  bool tied_embeddings = false;
  // Dense feed-forward layers (gate, up, down) of this width.
  int64_t intermediate = 0;
  // Mixture of experts from layer `dense_layers` on; 0 experts: none.
  int64_t experts = 0, shared_experts = 0, expert_intermediate = 0;
  int64_t dense_layers = 0;

  bool whole() const { return hidden > 0; }
  // Parameters of the whole model, norms apart (under 0.01 %).
  int64_t Parameters() const;
  DecodeShape Attention(int64_t groups, DType scale_type) const;
};

// qwen3-4b, qwen3-8b, qwen3-32b, glm-4.7; from the models' published configurations.
std::span<const ModelShape> KnownModelShapes();
// Throws Error(kUsage) listing the known names.
const ModelShape& ModelShapeOf(const std::string& name);

}  // namespace oscar
