// Schemes on the rows of held-out traces: every metric, layer by layer, sequence by sequence.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "oscar/core/progress.h"
#include "oscar/quant/scheme.h"
#include "oscar/trace/trace.h"
#include "oscar/verify/scheme_result.h"

namespace oscar {

// A sequence of a set of traces.
struct SequenceRef {
  size_t trace = 0;  // into TraceSet::traces()
  size_t index = 0;  // into its header's sequences
  int64_t length = 0;
};

// Complete sequences with rows in which some position is quantised; the others are counted.
struct SequenceChoice {
  std::vector<SequenceRef> sequences;
  int64_t without_rows = 0;       // no rows stored
  int64_t incomplete = 0;         // cut off by a budget
  int64_t too_short = 0;          // shorter than Windows::ShortestUseful()
  std::vector<int> exact_layers;  // whose sliding window lies within the recent tokens
};

// Throws Error(kData) naming sink, recent and the longest sequence when none is left, or when no
// sequence has rows; Error(kData) naming a layer and its sliding window when no layer sees a
// quantised key; Error(kData) when a trace lacks tokens in front of its sequences
// (cached_prefix_len) and the sink is in use: position 0 would not be the first token;
// Error(kUsage) when one sequence stands in the traces twice: it would count as two samples.
SequenceChoice ChooseSequences(const TraceSet& set, const Windows& windows, bool use_windows);

struct EvaluationSettings {
  int64_t positions = 128;  // query positions per sequence
  uint64_t seed = 1;        // of the matched noise
  bool controls = true;     // a matched-noise control beside every scheme that quantises
};

// Results in the order of `schemes`, each followed by its control. All schemes must have the same
// windows rule: attention at the chosen positions is exact for all of them. Layers that see no
// quantised key are left out. Traces must hold the same layers. Reads each row once per layer;
// memory is one layer of one sequence. Throws Error(kNumeric) naming layer and token for rows that
// are not finite, Error(kInterrupted).
std::vector<SchemeResult> EvaluateSchemes(const TraceSet& set,
                                          std::span<const SequenceRef> sequences,
                                          std::span<const KvScheme> schemes,
                                          const EvaluationSettings& settings,
                                          const RunContext& context);

// Throws Error(kMismatch) when the traces of a set hold different layers.
void CheckSameLayers(const TraceSet& set);
// The layers of a set in which some query sees a quantised key under the scheme's windows.
std::vector<int> MeasuredLayers(const TraceSet& set, const KvScheme& scheme);

// Mean stored bits per element over all layers at a context of `tokens` tokens.
double MeanBitsPerElement(const KvScheme& scheme, const TraceSet& set, int64_t tokens);

}  // namespace oscar
