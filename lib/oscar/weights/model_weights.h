// Weights and metadata of a decoder-only language model, from a Hugging Face folder or a GGUF file:
// memory-mapped, one interface for both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/value.h"

namespace oscar {

// Rotary position embedding of a model, half-split form: dims i and i + n/2 of the first n dims of
// a head form a pair, angle = position * inv_freq[i].
struct RopeSpec {
  std::vector<double> inv_freq;  // [n / 2], scaling (linear, llama3, yarn) already applied
  double attention_factor = 1;   // yarn: multiplies cos and sin
};

// The properties that distinguish the supported architectures; one table row fills them.
struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t layers = 0, hidden = 0, intermediate = 0, vocab = 0;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0;  // head_dim is read, never divided
  double rms_eps = 0;
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool qk_norm = false;  // RMSNorm over head_dim on q and k before RoPE
  bool tied_embeddings = false;
  int64_t sliding_window = 0;           // 0: none
  std::vector<bool> layer_uses_window;  // [layers]
  int64_t max_positions = 0;
  RopeSpec rope;
  int64_t eos_token = -1, bos_token = -1;
  std::string activation = "silu";

  LayerShape ShapeOfLayer(int64_t layer) const;
};

// Decoder weights of one layer, float32, [out, in] row-major as in nn.Linear; biases empty if none.
struct LayerWeights {
  std::vector<float> attn_norm, ffn_norm;  // [hidden]
  std::vector<float> q, k, v, o;           // q [H_q D, hidden], o [hidden, H_q D]
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> q_norm, k_norm;  // [head_dim]
  std::vector<float> gate, up, down;  // [I, hidden], [I, hidden], [hidden, I]
  std::vector<float> gate_bias, up_bias, down_bias;
};

class ModelWeights {
 public:
  virtual ~ModelWeights() = default;
  virtual const ModelConfig& config() const = 0;
  // A name for manifests: folder or file name without extension, or the name in the metadata.
  virtual std::string model_id() const = 0;
  // SHA-256 over the canonical configuration (not the file bytes).
  virtual std::string config_hash() const = 0;
  // Dequantised weights of one layer, GGUF's q/k row permutation undone. Throws Error(kFormat)
  // naming tensor, expected and found shape. `threads` for dequantisation.
  virtual LayerWeights LoadLayer(int64_t layer, int threads) const = 0;
  // Rows of the token embedding for `ids`, [ids, hidden]. Throws Error(kData) for an id outside
  // the vocabulary.
  virtual std::vector<float> EmbeddingRows(const std::vector<int32_t>& ids) const = 0;
  virtual std::vector<float> FinalNorm() const = 0;  // [hidden]
  // Rows [begin, end) of the LM head (or of the tied embedding), [end - begin, hidden].
  virtual std::vector<float> HeadRowsRange(int64_t begin, int64_t end, int threads) const = 0;
  // Bytes of the dequantised weights of one layer, for --dry-run.
  virtual int64_t LayerBytes() const = 0;
  // Tells the kernel that the pages of a layer are not needed any more.
  virtual void ReleaseLayer(int64_t layer) const = 0;
  // GGUF key-value metadata (tokenizer.* included) as a Value, or nullptr for folders.
  virtual const Value* gguf_metadata() const = 0;
  virtual const std::filesystem::path& path() const = 0;
};

// Opens a folder with config.json and safetensors, or a .gguf file. Throws Error(kIo / kFormat /
// kUnsupported): an unknown architecture, an unknown config field that changes the mathematics, or
// an unknown tensor type is refused by name.
std::unique_ptr<ModelWeights> OpenModel(const std::filesystem::path& path);

}  // namespace oscar
