// The layer-major runner: every sequence goes through one decoder layer before the next layer's
// weights are loaded. No LibTorch type appears in this header.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "oscar/core/layer.h"
#include "oscar/core/progress.h"
#include "oscar/stats/capture.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

// Per token comparison of a stream's next-token distribution with the exact run's, in nats.
struct LogitComparison {
  std::vector<double> kl;     // KL(P_exact || P_stream) at every position, [tokens]
  std::vector<uint8_t> top1;  // 1 where both streams' largest logits agree, [tokens]
  std::vector<double> nll_exact, nll_stream;  // of the next token; NaN at the last of a sequence
};

class ModelRunner {
 public:
  // `sequences`: token ids, each run with positions 0..T-1 and full causal attention (or the
  // model's sliding window). device: "cpu", "cuda" or "cuda:<i>"; throws Error(kDevice) when there
  // is none. Keeps a reference to `weights`.
  ModelRunner(const ModelWeights& weights, std::vector<std::vector<int32_t>> sequences,
              const std::string& device, RunContext context);
  ~ModelRunner();

  // Adds a run of the same sequences with its KV cache replaced through `tap` (before the first
  // layer only). Returns its stream index (1, 2, ...); stream 0 is the exact run. At query i, key j
  // comes from the tap where windows.Quantised(i, j), or always when use_windows is false.
  int AddStream(KvTap* tap, const Windows& windows, bool use_windows);

  int64_t next_layer() const;  // == config().layers when done
  // Runs the next layer for all streams. `capture` may be null; it receives stream 0's rows.
  // Polls the cancel token between sequences: an interrupted layer leaves the state as it was.
  void RunLayer(const CaptureSpec* spec, LayerCapture* capture);

  // Hidden states of a stream at the current layer boundary, [tokens, hidden], tokens of all
  // sequences in order. After the last layer: before the final norm.
  const float* Hidden(int stream) const;
  int64_t total_tokens() const;

  // Final norm and LM head over the vocabulary in blocks. Only after the last layer.
  LogitComparison CompareLogits(int stream) const;
  // Next-token negative log-likelihood of stream 0, NaN at the last token of each sequence.
  std::vector<double> TokenNll() const;
  // The `count` largest logits of stream 0 at the given tokens, ids and values, descending.
  struct TopLogits {
    std::vector<int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<TopLogits> Top(const std::vector<int64_t>& tokens, int count) const;
  // Final-norm output of stream 0 at the given tokens, [tokens, hidden].
  std::vector<float> FinalHidden(const std::vector<int64_t>& tokens) const;

  // Checkpoint of stream 0: float32 hidden states and the next layer, with a checksum. Restoring
  // throws Error(kFormat) for a damaged file, Error(kMismatch) for other sequences or another
  // model.
  void SaveState(const std::filesystem::path& file) const;
  void RestoreState(const std::filesystem::path& file);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Peak bytes of a run, for --dry-run and for refusing early.
int64_t EstimateRunnerBytes(const ModelConfig& config, int64_t total_tokens, int64_t longest,
                            int64_t streams);

}  // namespace oscar
