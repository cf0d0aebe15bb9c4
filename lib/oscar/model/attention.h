// Attention of whole sequences. Internal to the module: this header shows LibTorch types.
//
// All tensors are [tokens, heads, dim] of one sequence; query head h reads KV head h / (H_q /
// H_kv).
#pragma once

#include <ATen/ATen.h>

#include "oscar/core/layer.h"

namespace oscar {

// Visible keys and the scale of the logits.
struct AttentionRule {
  double scale = 0;    // o = softmax(scale q k^T) v
  int64_t window = 0;  // query i sees keys i - window < j <= i; 0: all j <= i
  bool fused = false;  // float32 on the CPU: by cpu_attention.h; otherwise by ATen's fused kernels
};

// o [T, H_q, D_v], contiguous, in the type of q. Uses memory linear in T.
at::Tensor CausalAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const AttentionRule& rule);

// The same with a cache that answers with k_hat, v_hat for the pairs (query i, key j) where
// windows.Quantised(i, j), and with k, v elsewhere.
at::Tensor CacheAttention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const at::Tensor& k_hat, const at::Tensor& v_hat,
                          const AttentionRule& rule, const Windows& windows);

// CausalAttention in float64, whatever the type of the arguments; blocks of queries bound the
// memory. For rows whose moments must be good to float64.
at::Tensor CausalAttentionFloat64(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                  const AttentionRule& rule);

}  // namespace oscar
