#include "oscar/bench/model_shape.h"

#include <array>

#include "oscar/core/error.h"

namespace oscar {

int64_t ModelShape::Parameters() const {
  const int64_t q_width = q_heads * head_dim;
  const int64_t attention = hidden * (2 * q_width + 2 * kv_heads * head_dim);
  const int64_t dense = 3 * hidden * intermediate;
  const int64_t sparse =
      3 * hidden * expert_intermediate * (experts + shared_experts) + hidden * experts;
  const int64_t dense_count = experts > 0 ? dense_layers : layers;
  return layers * attention + dense_count * dense + (layers - dense_count) * sparse +
         hidden * vocabulary * (tied_embeddings ? 1 : 2);
}

DecodeShape ModelShape::Attention(int64_t groups, DType scale_type) const {
  DecodeShape shape;
  shape.cache = {kv_heads, head_dim, groups, scale_type};
  shape.q_heads = q_heads;
  return shape;
}

std::span<const ModelShape> KnownModelShapes() {
  static const std::array<ModelShape, 4> kShapes = {ModelShape{.name = "qwen3-4b",
                                                               .layers = 36,
                                                               .q_heads = 32,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .hidden = 2560,
                                                               .vocabulary = 151936,
                                                               .tied_embeddings = true,
                                                               .intermediate = 9728},
                                                    ModelShape{.name = "qwen3-8b",
                                                               .layers = 36,
                                                               .q_heads = 32,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .hidden = 4096,
                                                               .vocabulary = 151936,
                                                               .intermediate = 12288},
                                                    ModelShape{.name = "qwen3-32b",
                                                               .layers = 64,
                                                               .q_heads = 64,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .hidden = 5120,
                                                               .vocabulary = 151936,
                                                               .intermediate = 25600},
                                                    ModelShape{.name = "glm-4.7",
                                                               .layers = 92,
                                                               .q_heads = 96,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .hidden = 5120,
                                                               .vocabulary = 151552,
                                                               .intermediate = 12288,
                                                               .experts = 160,
                                                               .shared_experts = 1,
                                                               .expert_intermediate = 1536,
                                                               .dense_layers = 3}};
  return kShapes;
}

const ModelShape& ModelShapeOf(const std::string& name) {
  std::string known;
  for (const ModelShape& shape : KnownModelShapes()) {
    if (shape.name == name) return shape;
    known += (known.empty() ? "" : ", ") + shape.name;
  }
  throw Error(ErrorCode::kUsage, "unknown model shape '" + name + "'", "known: " + known);
}

}  // namespace oscar
