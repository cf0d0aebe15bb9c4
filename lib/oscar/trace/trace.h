// The trace file `oscar.trace/1`: second moments of all tokens of a run and rows of some sequences,
// per layer, in HDF5. docs/formats/trace.md is the specification.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/layer.h"
#include "oscar/core/value.h"
#include "oscar/stats/capture.h"
#include "oscar/stats/moments.h"

namespace oscar {

// One sequence of tokens, in the order in which the run saw them.
struct TraceSequence {
  int64_t start = 0;      // first token's index among all tokens of the trace
  int64_t length = 0;     // tokens
  bool complete = true;   // false: cut off by a budget; never used for verification
  bool has_rows = false;  // q, k, v rows of this sequence are stored in every layer
  std::string sha256;     // of the int32 little-endian token ids; empty when ids are unknown
};

// Everything of a trace that is not per layer.
struct TraceHeader {
  // See docs/formats/trace.md. The key "volatile" (times, host) is for printing: it is not stored.
  Value manifest;
  std::vector<TraceSequence> sequences;
  // Hashes of sampled 24-grams of token ids (for overlap detection); empty when ids are unknown.
  std::vector<uint64_t> ngram_hashes;
  std::vector<int> layers;  // layers the finished trace will hold, ascending
};

// Crash-safe writer. While running, `<path>.part/` holds one file per finished layer; Finish()
// assembles them into `path` and removes the folder.
class TraceWriter {
 public:
  // Starts a new trace, or continues `<path>.part/` when `resume` is set and its header agrees (the
  // manifest's "volatile" apart). With `resume`, a finished trace at `path` that agrees counts as
  // continued too: all its layers are there. Throws Error(kIo) when `path` exists and `force` is
  // false, when a .part folder exists and neither `resume` nor `force` is set, or when another
  // process is writing there; Error(kMismatch) listing the differences on resume without `force`.
  TraceWriter(std::filesystem::path path, TraceHeader header, bool resume, bool force);
  ~TraceWriter();

  const std::filesystem::path& part_folder() const;
  // Whether the finished trace was already there.
  bool finished() const;
  bool HasLayer(int layer) const;
  // Temporary name, sync, rename: a layer is there whole or not at all. Throws Error(kData) naming
  // the layer when it did not observe every token of the header or observed only zeros,
  // Error(kNumeric) when a sum is not finite.
  void WriteLayer(const LayerCapture& layer);

  // One file for what the producer needs to go on from a layer boundary, whatever it is. A producer
  // writes a layer first and the state of the boundary behind it second. A kill between the two
  // leaves a state that is one layer behind the layer files: on resume that layer runs once more
  // and is not written again. The state is never ahead of the layer files.
  // The state of the last boundary, when there is one.
  std::optional<std::filesystem::path> state_file() const;
  // Replaces it: `write` fills a temporary file, which is synced and renamed.
  void WriteState(const std::function<void(const std::filesystem::path& file)>& write);

  // Throws Error(kData) naming the missing layers when some layer was not written.
  void Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

class TraceReader {
 public:
  // Throws Error(kIo / kFormat) naming the file and what is wrong with it.
  explicit TraceReader(const std::filesystem::path& path);
  ~TraceReader();
  TraceReader(TraceReader&&) noexcept;

  const std::filesystem::path& path() const;
  const TraceHeader& header() const;
  const LayerShape& shape(int layer) const;  // throws Error(kData) for an unknown layer
  LayerMoments ReadMoments(int layer) const;
  // Tokens with rows, over all sequences with has_rows.
  int64_t row_tokens() const;
  enum class Rows { kQ, kK, kV };
  // Rows of sequence `index` (into header().sequences) as float32, [length, H, D].
  // Throws Error(kData) when the sequence has no rows, Error(kNumeric) naming layer and token when
  // a value is not finite.
  std::vector<float> ReadRows(int layer, Rows which, size_t index) const;
  // [hidden, H_q * D_v] as float32; nullopt when the trace has none.
  std::optional<std::vector<float>> ReadOProj(int layer) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Moments of several traces of one model, merged layer by layer. Throws Error(kMismatch) naming the
// file and the manifest key (model id, config hash, capture point, layer shapes) that differs.
// Traces may hold different layers (shards of a model): a layer is merged from those that hold it.
// Recomputes `sst` from rows (bfloat16) when every token of every trace has rows; otherwise a merge
// of traces with different `qq` leaves `sst` out.
class TraceSet {
 public:
  explicit TraceSet(const std::vector<std::filesystem::path>& paths);
  const std::vector<TraceReader>& traces() const { return traces_; }
  const std::vector<int>& layers() const { return layers_; }
  LayerMoments Moments(int layer) const;

 private:
  std::vector<TraceReader> traces_;
  std::vector<int> layers_;
};

// Sampled 24-gram hashes of one token sequence: the hash of every window of 24 ids whose hash is
// 0 modulo 8 (content-defined sampling, so equal text is sampled equally wherever it stands).
std::vector<uint64_t> SampledNgrams(const std::vector<int32_t>& ids);

// What `ngram_hashes` of a header holds: the sampled 24-grams of all sequences, sorted, each once,
// without those that are half or more frame. Frames are runs of 8 tokens that stand four times or
// more, such as a chat template: sharing one says nothing about having seen the text.
std::vector<uint64_t> DistinctiveNgrams(const std::vector<std::vector<int32_t>>& sequences);

// Overlap of two headers: "none", "unknown" (ids not known), or the number of shared sampled
// 24-grams and of identical sequences.
struct Overlap {
  bool known = false;
  size_t shared_ngrams = 0;
  size_t total_ngrams = 0;                  // of `b`
  std::vector<size_t> identical_sequences;  // indices into b.sequences
  bool any() const { return shared_ngrams > 0 || !identical_sequences.empty(); }
};
Overlap FindOverlap(const TraceHeader& a, const TraceHeader& b);

}  // namespace oscar
