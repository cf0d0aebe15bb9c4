// The one place where moments are computed, for a model's run and for imported dumps alike.
// No LibTorch type appears in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/stats/capture.h"

namespace oscar {

// Accumulates the moments of one layer over sequences whose rows lie in memory (imported dumps).
// The runner uses the same accumulator on its own tensors.
class RowObserver {
 public:
  // Moments that need attention outputs (`oo`) are computed with exact causal attention inside each
  // sequence. `threads` for ATen.
  RowObserver(int layer, const LayerShape& shape, const CaptureSpec& spec, int threads);
  ~RowObserver();

  // Rows of one whole sequence: bfloat16 q [T, H_q, D_k], k [T, H_kv, D_k], v [T, H_kv, D_v].
  void AddSequence(HeadRows<const BFloat16> q, HeadRows<const BFloat16> k,
                   HeadRows<const BFloat16> v);
  LayerCapture Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
