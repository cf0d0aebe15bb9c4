// One scheme on one layer of a batch, through the real write and decode kernels of a backend.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/view.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"
#include "oscar/quant/scheme.h"
#include "oscar/verify/kernel_backend.h"
#include "oscar/verify/paged_batch.h"

namespace oscar {

// What the kernels are told about keys or values.
struct SideKernel {
  std::vector<BFloat16> rotation;  // [dim, dim] or [kv_heads, dim, dim]; empty: identity
  bool per_head = false;
  int64_t clip_index = -1;
  ClipRule clip_rule = ClipRule::kOrderStatistic;
};

// Throws Error(kUnsupported) naming what the kernels cannot do: another codebook, a map that is not
// its own inverse transposed.
SideKernel KernelSideOf(const SideScheme& side, int64_t dim, int64_t kv_heads);

// The kernels' shape of a layer under a scheme. Throws Error(kUnsupported) for one that they do not
// handle.
DecodeShape KernelShapeOf(const LayerShape& layer, const LayerScheme& scheme);

struct KernelCase {
  DecodeShape shape;
  float logit_scale = 1;
  SideKernel key, value;
  const PagedBatch* batch = nullptr;
  // Rows of all tokens, and of the queries.
  const std::vector<BFloat16>* q = nullptr;  // [requests, q_heads, dim]
  const std::vector<BFloat16>* k = nullptr;  // [tokens, kv_heads, dim]
  const std::vector<BFloat16>* v = nullptr;
};

// Everything that came back.
struct KernelOutput {
  // One side of the cache: both tiers whole, slots that were not written still 0xff.
  struct Side {
    std::vector<uint8_t> codes, scales;  // [pool, heads, dim / 4], [pool, heads, 2 groups]
    std::vector<BFloat16> rows;          // [row pool, heads, dim]
    std::vector<BFloat16> rotated;  // [tokens, heads, dim]: the kernel's own rows of all tokens
  };
  Side key, value;
  std::vector<BFloat16> q;    // [requests, q_heads, dim], rotated
  std::vector<float> o, lse;  // [requests, q_heads, dim] in the original coordinates, [.., q_heads]
  std::optional<double> write_ms, decode_ms;
  int64_t write_bytes = 0, decode_bytes = 0;
};

// Writes the cache, rotates the queries, decodes; with `timed`, times both launches again.
KernelOutput RunKernels(const KernelCase& c, KernelBackend& backend, bool timed);

// Rows of the cache of one sequence in the original coordinates, [tokens, heads, dim]: what the
// 2-bit tier gives back, or the bf16 tier where a token is in that one only; and what the bf16 tier
// gives back. Where no query reads a token, the exact row stands.
struct TierRows {
  std::vector<float> quantised, window;
};
TierRows ReadBack(const KernelCase& c, const SideKernel& side, const KernelOutput::Side& written,
                  size_t sequence, HeadRows<const float> exact, int threads);

}  // namespace oscar
