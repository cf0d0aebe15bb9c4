// How much cache fits beside a model's weights, and what moving bytes alone would allow.
#pragma once

#include <cstdint>

#include "oscar/bench/model_shape.h"
#include "oscar/core/layer.h"

namespace oscar {

enum class CacheFormat { kBFloat16, kInt2 };

// Bytes of one request's cache in one layer at a context of `tokens`: in INT2 the sink and recent
// tokens of `windows` are bf16 rows (a context that is no longer than both has only these).
int64_t RequestBytes(const CacheShape& shape, CacheFormat format, const Windows& windows,
                     int64_t tokens);

struct MemoryBudget {
  int64_t device_bytes = 0;
  double fraction = 0.9;  // of it for weights and caches: the rest is for activations and graphs
};

// Requests of `tokens` tokens whose caches fit beside bf16 weights; 0 when not even the weights do.
int64_t RequestsThatFit(const ModelShape& model, const CacheShape& shape, CacheFormat format,
                        const Windows& windows, int64_t tokens, const MemoryBudget& budget);

// Bytes that one decode step of a dense model reads: all weights once (an embedding table apart,
// whose rows are few) and every request's cache.
int64_t StepBytes(const ModelShape& model, const CacheShape& shape, CacheFormat format,
                  const Windows& windows, int64_t tokens, int64_t batch);

}  // namespace oscar
