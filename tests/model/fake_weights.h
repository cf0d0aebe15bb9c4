// A small random model in memory.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/random.h"
#include "oscar/weights/model_weights.h"

namespace oscar::test {

// Two layers, GQA with 2 queries a group, an odd width of the MLP and a small vocabulary.
inline ModelConfig SmallConfig() {
  ModelConfig c;
  c.architecture = "llama";
  c.layers = 2;
  c.hidden = 40;
  c.intermediate = 53;
  c.vocab = 71;
  c.q_heads = 4;
  c.kv_heads = 2;
  c.head_dim = 24;
  c.rms_eps = 1e-5;
  c.layer_uses_window.assign(2, false);
  c.max_positions = 1 << 20;
  for (int i = 0; i < 12; ++i) c.rope.inv_freq.push_back(std::pow(10000.0, -i / 12.0));
  return c;
}

class FakeWeights final : public ModelWeights {
 public:
  explicit FakeWeights(ModelConfig config, uint64_t seed = 1)
      : config_(std::move(config)), seed_(seed) {}

  const ModelConfig& config() const override { return config_; }
  std::string model_id() const override { return "fake"; }
  std::string config_hash() const override { return Sha256Hex(std::to_string(seed_)); }
  LayerWeights LoadLayer(int64_t layer, int) const override {
    Random random(DeriveSeed(seed_, "layer" + std::to_string(layer)));
    const ModelConfig& c = config_;
    const int64_t q = c.q_heads * c.head_dim;
    const int64_t kv = c.kv_heads * c.head_dim;
    const auto matrix = [&](int64_t rows, int64_t cols) {
      return Normal(random, rows * cols, 0, 1.0 / std::sqrt(static_cast<double>(cols)));
    };
    LayerWeights w;
    w.attn_norm = Normal(random, c.hidden, 1, 0.2);
    w.ffn_norm = Normal(random, c.hidden, 1, 0.2);
    w.q = matrix(q, c.hidden);
    w.k = matrix(kv, c.hidden);
    w.v = matrix(kv, c.hidden);
    w.o = matrix(c.hidden, q);
    w.gate = matrix(c.intermediate, c.hidden);
    w.up = matrix(c.intermediate, c.hidden);
    w.down = matrix(c.hidden, c.intermediate);
    if (c.qkv_bias) {
      w.q_bias = Normal(random, q, 0, 0.3);
      w.k_bias = Normal(random, kv, 0, 0.3);
      w.v_bias = Normal(random, kv, 0, 0.3);
    }
    if (c.o_bias) w.o_bias = Normal(random, c.hidden, 0, 0.3);
    if (c.qk_norm) {
      w.q_norm = Normal(random, c.head_dim, 1.5, 0.3);
      w.k_norm = Normal(random, c.head_dim, 1.5, 0.3);
    }
    if (c.mlp_bias) {
      w.gate_bias = Normal(random, c.intermediate, 0, 0.3);
      w.up_bias = Normal(random, c.intermediate, 0, 0.3);
      w.down_bias = Normal(random, c.hidden, 0, 0.3);
    }
    if (layer == poisoned_layer) w.v[0] = std::numeric_limits<float>::quiet_NaN();
    return w;
  }
  std::vector<float> EmbeddingRows(const std::vector<int32_t>& ids) const override {
    std::vector<float> out;
    for (const int32_t id : ids) {
      if (id < 0 || id >= config_.vocab) throw Error(ErrorCode::kData, "id outside vocabulary");
      Random random(DeriveSeed(seed_, "embedding" + std::to_string(id)));
      const std::vector<float> row = Normal(random, config_.hidden, 0, 0.7);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  std::vector<float> FinalNorm() const override {
    Random random(DeriveSeed(seed_, "norm"));
    return Normal(random, config_.hidden, 1, 0.2);
  }
  std::vector<float> HeadRowsRange(int64_t begin, int64_t end, int) const override {
    std::vector<float> out;
    for (int64_t id = begin; id < end; ++id) {
      // Two ids share a row, so that ties occur.
      Random random(DeriveSeed(seed_, "head" + std::to_string(id / 2)));
      const std::vector<float> row = Normal(random, config_.hidden, 0, 0.4);
      out.insert(out.end(), row.begin(), row.end());
    }
    return out;
  }
  int64_t LayerBytes() const override { return 0; }
  void ReleaseLayer(int64_t) const override {}
  const Value* gguf_metadata() const override { return nullptr; }
  const std::filesystem::path& path() const override { return path_; }

  int64_t poisoned_layer = -1;  // its first value weight is not a number

 private:
  static std::vector<float> Normal(Random& random, int64_t count, double mean, double deviation) {
    std::vector<float> out(static_cast<size_t>(count));
    for (float& x : out) x = static_cast<float>(mean + deviation * random.Normal());
    return out;
  }

  ModelConfig config_;
  uint64_t seed_;
  std::filesystem::path path_;
};

inline std::vector<std::vector<int32_t>> RandomSequences(const std::vector<int64_t>& lengths,
                                                         int64_t vocab, uint64_t seed) {
  Random random(seed);
  std::vector<std::vector<int32_t>> out;
  for (const int64_t length : lengths) {
    out.emplace_back();
    for (int64_t t = 0; t < length; ++t) {
      out.back().push_back(static_cast<int32_t>(random.Below(static_cast<uint64_t>(vocab))));
    }
  }
  return out;
}

}  // namespace oscar::test
