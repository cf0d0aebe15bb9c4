// Forward hooks: what a layer's attention saw, and the one place where moments are computed, for a
// model's run and for imported dumps alike. No LibTorch type appears in this header.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/stats/capture.h"

namespace oscar {

// Attention of one whole sequence in one layer: queries [T, H_q, D_k] and keys [T, H_kv, D_k] after
// QK-norm and RoPE, values [T, H_kv, D_v], outputs [T, H_q, D_v] before o_proj; positions 0..T-1.
// In a stream with a KvTap, k and v are the stream's exact rows and o is what the cache gave.
struct AttentionRows {
  int layer = 0;
  int64_t sequence = 0;  // index into the runner's sequences
  HeadRows<const float> q, k, v, o;
};

// A forward hook, called by ModelRunner between attention and o_proj. Calls come from the thread
// that runs RunLayer(), sequences in order. The rows are valid during the call only; a sink that
// throws stops the layer, which then counts as not run.
class AttentionSink {
 public:
  virtual ~AttentionSink() = default;
  virtual void BeginLayer(int /*layer*/, const LayerShape& /*shape*/) {}
  virtual void OnSequence(const AttentionRows& rows) = 0;
  // The layer ran to its end. Not called when it was interrupted or failed: BeginLayer() of the
  // same layer may then follow once more.
  virtual void EndLayer(int /*layer*/) {}
};

// Accumulates the moments of one layer over sequences whose rows lie in memory (imported dumps).
// The runner uses the same accumulator on its own tensors.
class RowObserver {
 public:
  // Moments that need attention outputs (`oo`) are computed with exact causal attention inside each
  // sequence, in float64. `threads` for ATen. Rows of the first spec.row_sequences sequences are
  // kept in the capture.
  RowObserver(int layer, const LayerShape& shape, const CaptureSpec& spec, int threads);
  ~RowObserver();

  // Rows of one whole sequence: bfloat16 q [T, H_q, D_k], k [T, H_kv, D_k], v [T, H_kv, D_v].
  // Throws Error(kNumeric) naming layer, sequence, tensor and token when a value is not finite.
  void AddSequence(HeadRows<const BFloat16> q, HeadRows<const BFloat16> k,
                   HeadRows<const BFloat16> v);
  // Throws Error(kData) when no token was added.
  LayerCapture Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
