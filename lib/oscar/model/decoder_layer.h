// The weights of one decoder layer and what it does to a sequence, attention aside. Internal to the
// module: this header shows LibTorch types.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "oscar/weights/model_weights.h"

namespace oscar {

// cos and sin of position * inv_freq[i], float32, [positions, n / 2] for RoPE over the first n dims
// of a head. As in the reference implementation the angle is a float32 product of the position and
// the frequency rounded to float32.
struct RopeTables {
  RopeTables(const RopeSpec& rope, int64_t positions, at::Device device);
  at::Tensor cos, sin;
};

class DecoderLayer {
 public:
  // `fused`: use the CPU loops of layer_kernels.h where they apply; otherwise ATen operations.
  DecoderLayer(const ModelConfig& config, const LayerShape& shape, LayerWeights weights,
               at::Device device, bool fused);

  // hidden [T, hidden] -> queries [T, H_q, D], keys and values [T, H_kv, D] as attention sees them.
  struct Heads {
    at::Tensor q, k, v;
  };
  Heads Project(const at::Tensor& hidden, const RopeTables& rope) const;

  // out = x + mlp(norm(x)) with x = hidden + o W_o^T; o [T, H_q, D_v]; out [T, hidden] is written.
  void Finish(const at::Tensor& hidden, const at::Tensor& o, const at::Tensor& out) const;

 private:
  struct Linear {
    at::Tensor weight;  // [out, in]
    at::Tensor bias;    // [out] or undefined
  };
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight) const;
  at::Tensor SplitHeads(const at::Tensor& x, int64_t heads, int64_t dim, const at::Tensor& norm,
                        const at::Tensor& cos, const at::Tensor& sin) const;
  void ProjectRows(const at::Tensor& hidden, const RopeTables& rope, int64_t begin, int64_t end,
                   const Heads& out) const;
  void MlpRows(const at::Tensor& x) const;

  LayerShape shape_;
  float eps_;
  bool fused_;
  at::Device device_;
  LayerWeights weights_;  // owns the memory of the tensors below on the CPU
  at::Tensor attn_norm_, ffn_norm_, q_norm_, k_norm_;
  Linear qkv_, o_, gate_, up_, down_;
};

// RMSNorm of rows [T, dim] with `weight` [dim] into a new tensor.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps, bool fused);

}  // namespace oscar
