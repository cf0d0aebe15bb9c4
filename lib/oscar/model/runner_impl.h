// State of ModelRunner, shared by its source files. Internal: this header shows LibTorch types.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <vector>

#include "oscar/model/decoder_layer.h"
#include "oscar/model/observer.h"
#include "oscar/model/runner.h"

namespace oscar {

struct RunnerData {
  // One run of the sequences. Stream 0 is exact and has no tap.
  struct Stream {
    KvTap* tap = nullptr;
    Windows windows;
    bool use_windows = true;
    at::Tensor hidden;  // [tokens, hidden] at the current layer boundary; not written to
    std::vector<AttentionSink*> sinks;
    at::Tensor on_host;  // copy of `hidden` for Hidden() when the device is not the CPU
  };

  RunnerData(const ModelWeights& model, std::vector<std::vector<int32_t>> ids,
             const RunContext& run_context, const RunnerOptions& run_options)
      : weights(model),
        config(model.config()),
        sequences(std::move(ids)),
        context(run_context),
        options(run_options) {}

  const ModelWeights& weights;
  const ModelConfig& config;
  std::vector<std::vector<int32_t>> sequences;
  std::vector<int64_t> starts;  // first token of each sequence, and the total at the end
  RunContext context;
  RunnerOptions options;
  at::Device device{at::kCPU};
  std::unique_ptr<RopeTables> rope;
  LayerScratch scratch;
  std::vector<Stream> streams;
  int64_t next_layer = 0;

  int64_t tokens() const { return starts.back(); }
  int64_t length(size_t sequence) const { return starts[sequence + 1] - starts[sequence]; }
  Stream& StreamAt(int stream);
  // Identifies the sequences and the model in checkpoints.
  std::string StateKey() const;

  at::Tensor Embed() const;
  // The final norm's output at rows of `hidden`.
  at::Tensor FinalNorm(const at::Tensor& hidden) const;
  // Token that follows token t of its sequence, or -1.
  std::vector<int32_t> NextTokens() const;
};

}  // namespace oscar
