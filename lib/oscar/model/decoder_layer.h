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

// Activations of a block of tokens, kept between calls: fresh pages for every block would cost as
// much as the elementwise work.
class LayerScratch {
 public:
  enum Use { kNormed, kFirst, kSecond };
  // [rows, cols] float32 on `like`'s device; what it held under the same use is lost.
  at::Tensor Take(Use use, int64_t rows, int64_t cols, const at::Tensor& like);

 private:
  at::Tensor memory_[3];
};

class DecoderLayer {
 public:
  // `fused`: use the CPU loops of layer_kernels.h where they apply; otherwise ATen operations.
  DecoderLayer(const ModelConfig& config, const LayerShape& shape, LayerWeights weights,
               at::Device device, bool fused);

  // Tokens that pass through a projection or the MLP at a time.
  static int64_t TokenBlock(const ModelConfig& config);

  // hidden [T, hidden] -> queries [T, H_q, D], keys and values [T, H_kv, D] as attention sees them.
  struct Heads {
    at::Tensor q, k, v;
  };
  Heads Project(const at::Tensor& hidden, const RopeTables& rope, LayerScratch& scratch) const;

  // out = x + mlp(norm(x)) with x = hidden + o W_o^T; o [T, H_q, D_v]; out [T, hidden] is written.
  void Finish(const at::Tensor& hidden, const at::Tensor& o, const at::Tensor& out,
              LayerScratch& scratch) const;

 private:
  struct Linear {
    at::Tensor weight;  // [out, in]
    at::Tensor bias;    // [out] or undefined
  };
  at::Tensor Norm(const at::Tensor& x, const at::Tensor& weight, LayerScratch& scratch) const;
  void SplitRows(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, int64_t begin,
                 const Heads& out) const;
  void SplitRowsFused(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                      int64_t begin, const Heads& out) const;
  void Mlp(const at::Tensor& x, LayerScratch& scratch) const;

  LayerShape shape_;
  float eps_;
  bool fused_;
  int64_t token_block_;
  LayerWeights weights_;  // owns the memory of the tensors below on the CPU
  at::Tensor attn_norm_, ffn_norm_, q_norm_, k_norm_;
  Linear qkv_, o_, gate_, up_, down_;
};

// out = RMSNorm of rows x [T, dim] with `weight` [dim].
void RmsNorm(const at::Tensor& x, const at::Tensor& weight, float eps, bool fused, at::Tensor& out);

}  // namespace oscar
