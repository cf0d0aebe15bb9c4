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
#include "oscar/model/observer.h"
#include "oscar/stats/capture.h"
#include "oscar/weights/model_weights.h"

namespace oscar {

// Per token comparison of a stream's next-token distribution with the exact run's, in nats.
struct LogitComparison {
  std::vector<double> kl;     // KL(P_exact || P_stream) at every position, [tokens]
  std::vector<uint8_t> top1;  // 1 where both streams' largest logits agree, [tokens]
  std::vector<double> nll_exact, nll_stream;  // of the next token; NaN at the last of a sequence
};

struct RunnerData;

struct RunnerOptions {
  // Elementwise work by the fused CPU loops; false: by ATen's operations, as on other devices.
  bool fused_loops = true;
};

// Stream 0 at a layer boundary. Shares memory with the runner and stays as it is while the runner
// goes on, so that saving may overlap the next layer on another thread.
class RunnerState {
 public:
  ~RunnerState();
  int64_t next_layer() const;
  // Writes through a temporary file, synced and renamed. Throws Error(kIo). Thread-safe.
  void Save(const std::filesystem::path& file) const;

 private:
  friend class ModelRunner;
  struct Impl;
  explicit RunnerState(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Float32 throughout: weights, activations, attention. One object is used from one thread; ATen's
// own threads are set to context.threads for the whole process.
class ModelRunner {
 public:
  // `sequences`: token ids, each run with positions 0..T-1 and full causal attention (or the
  // model's sliding window). device: "cpu", "cuda" or "cuda:<i>"; throws Error(kUsage) for another
  // name, Error(kDevice) when there is none, Error(kData) for no sequence, an empty one, an id
  // outside the vocabulary or a sequence longer than the model's positions. Keeps a reference to
  // `weights`.
  ModelRunner(const ModelWeights& weights, std::vector<std::vector<int32_t>> sequences,
              const std::string& device, RunContext context, RunnerOptions options = {});
  ~ModelRunner();

  // Adds a run of the same sequences with its KV cache replaced through `tap` (before the first
  // layer only). Returns its stream index (1, 2, ...); stream 0 is the exact run. At query i, key j
  // comes from the tap where windows.Quantised(i, j), or always when use_windows is false; other
  // keys are the model's own, or the tap's window rows where it has such. A tap
  // that gives back every row of a sequence unchanged leaves that sequence's hidden states equal to
  // the last bit.
  int AddStream(KvTap* tap, const Windows& windows, bool use_windows);

  // Adds a forward hook on the attention of a stream, called in the order of adding.
  void AddSink(AttentionSink* sink, int stream = 0);

  int64_t next_layer() const;  // == config().layers when done
  // Runs the next layer for all streams. `capture` may be null; it receives stream 0's moments and
  // rows. Polls the cancel token between sequences: an interrupted or failed layer leaves the state
  // and `capture` as they were. Throws Error(kInterrupted), Error(kNumeric) naming layer, sequence
  // and token, Error(kMemory), Error(kDevice), and what weights, taps and sinks throw.
  void RunLayer(const CaptureSpec* spec, LayerCapture* capture);

  // Hidden states of a stream at the current layer boundary, [tokens, hidden], tokens of all
  // sequences in order. After the last layer: before the final norm. Valid until the next layer.
  const float* Hidden(int stream) const;
  int64_t total_tokens() const;

  // Final norm and LM head over the vocabulary in blocks. Only after the last layer.
  LogitComparison CompareLogits(int stream) const;
  // The same for several streams, with the exact logits and the head's weights computed once.
  std::vector<LogitComparison> CompareLogits(const std::vector<int>& streams) const;
  // Next-token negative log-likelihood of stream 0, NaN at the last token of each sequence.
  std::vector<double> TokenNll() const;
  // The `count` largest logits of stream 0 at the given tokens, ids and values, descending; equal
  // logits by ascending id.
  struct TopLogits {
    std::vector<int32_t> ids;
    std::vector<float> logits;
  };
  std::vector<TopLogits> Top(const std::vector<int64_t>& tokens, int count) const;
  // Final-norm output of stream 0 at the given tokens, [tokens, hidden].
  std::vector<float> FinalHidden(const std::vector<int64_t>& tokens) const;

  // Checkpoint of stream 0: float32 hidden states and the next layer, with a checksum.
  std::shared_ptr<const RunnerState> State() const;
  void SaveState(const std::filesystem::path& file) const { State()->Save(file); }
  // Continues from a checkpoint (runs without further streams only). Throws Error(kIo),
  // Error(kFormat) for a damaged file, Error(kMismatch) for other sequences or another model.
  void RestoreState(const std::filesystem::path& file);

 private:
  std::unique_ptr<RunnerData> impl_;
};

// Peak bytes of a run that captures everything, for --dry-run and for refusing early: hidden
// states before and after a layer for every stream, one layer's weights, keys and values kept for
// the second pass of `sst`, captured rows of all tokens, and the working set of the longest
// sequence. LibTorch itself (about 300 MiB resident) is included.
int64_t EstimateRunnerBytes(const ModelConfig& config, int64_t total_tokens, int64_t longest,
                            int64_t streams);

}  // namespace oscar
