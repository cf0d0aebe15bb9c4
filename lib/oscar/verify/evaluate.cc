#include "oscar/verify/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/metrics/attention.h"
#include "oscar/quant/windows.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/collector.h"

namespace oscar {
namespace {

// Whether a scheme changes anything and so has a control.
bool Quantises(const KvScheme& scheme) {
  return std::ranges::any_of(scheme.layers, [](const auto& entry) {
    return entry.second.key.quantiser.bits < 16 || entry.second.value.quantiser.bits < 16;
  });
}

// Rows of one layer of one sequence with the exact attention.
struct LayerRows {
  LayerShape shape;
  int64_t tokens;
  std::vector<float> q, k, v;

  HeadRows<const float> Q() const { return {q.data(), tokens, shape.q_heads, shape.k_dim}; }
  HeadRows<const float> K(const std::vector<float>& rows) const {
    return {rows.empty() ? nullptr : rows.data(), tokens, shape.kv_heads, shape.k_dim};
  }
  HeadRows<const float> V(const std::vector<float>& rows) const {
    return {rows.empty() ? nullptr : rows.data(), tokens, shape.kv_heads, shape.v_dim};
  }
};

// What a cache returns for the rows of one side.
struct SideRows {
  std::vector<float> quantised, window;  // window: empty when exact
};

SideRows ReconstructSide(const SideScheme& side, HeadRows<const float> x, int threads) {
  SideRows rows;
  rows.quantised.resize(static_cast<size_t>(x.size()));
  Reconstruct(side, x, {rows.quantised.data(), x.tokens, x.heads, x.dim}, threads);
  if (WindowsAreInexact(side)) {
    rows.window.resize(rows.quantised.size());
    ReconstructWindows(side, x, {rows.window.data(), x.tokens, x.heads, x.dim}, threads);
  }
  return rows;
}

// Of the rows, the first `seen` count: those up to the last chosen query.
Measurement Measure(const AttentionReference& exact, const LayerRows& rows, int64_t seen,
                    const SideRows& key, const SideRows& value, const KvScheme& scheme,
                    bool projected, int threads) {
  const HeadRows<const float> k_hat = rows.K(key.quantised), k_window = rows.K(key.window);
  const HeadRows<const float> v_hat = rows.V(value.quantised), v_window = rows.V(value.window);
  Measurement m;
  m.projected = projected;
  m.attention = exact.Compare({k_hat, v_hat, k_window, v_window}, scheme.windows,
                              scheme.use_windows, threads);
  const auto compare = [&](HeadRows<const float> x, HeadRows<const float> x_hat,
                           HeadRows<const float> window) {
    return CompareRows(x.Slice(0, seen), x_hat.Slice(0, seen), window.Slice(0, seen),
                       scheme.windows, scheme.use_windows, rows.shape.window);
  };
  m.key = compare(rows.K(rows.k), k_hat, k_window);
  m.value = compare(rows.V(rows.v), v_hat, v_window);
  return m;
}

void ReplaceByNoise(HeadRows<const float> x, std::vector<float>& quantised, uint64_t seed,
                    int threads) {
  const HeadRows<float> view{quantised.data(), x.tokens, x.heads, x.dim};
  MatchedNoise(x, view, view, seed, threads);
}

// A scheme with its collector and that of its control.
struct Candidate {
  const KvScheme* scheme;
  Collector collector;
  std::optional<Collector> control;
  uint64_t noise_seed = 0;
};

std::vector<Candidate> MakeCandidates(std::span<const KvScheme> schemes,
                                      const EvaluationSettings& settings) {
  std::vector<Candidate> candidates;
  for (const KvScheme& scheme : schemes) {
    candidates.push_back({&scheme, Collector(scheme.name, scheme.label, false), std::nullopt,
                          DeriveSeed(settings.seed, scheme.name)});
    if (!settings.controls || !Quantises(scheme)) continue;
    candidates.back().control.emplace(scheme.name + "+noise",
                                      "noise of the same norm as " + scheme.label, true);
  }
  return candidates;
}

void MeasureCandidate(Candidate& candidate, const AttentionReference& exact, const LayerRows& rows,
                      int64_t seen, int layer, size_t sequence, bool projected, int threads) {
  const LayerScheme& scheme = candidate.scheme->ForLayer(layer);
  SideRows key = ReconstructSide(scheme.key, rows.K(rows.k), threads);
  SideRows value = ReconstructSide(scheme.value, rows.V(rows.v), threads);
  const auto measure = [&] {
    return Measure(exact, rows, seen, key, value, *candidate.scheme, projected, threads);
  };
  candidate.collector.Add(layer, sequence, measure());
  if (!candidate.control.has_value()) return;
  const uint64_t seed =
      DeriveSeed(candidate.noise_seed, fmt::format("layer {} sequence {}", layer, sequence));
  ReplaceByNoise(rows.K(rows.k), key.quantised, DeriveSeed(seed, "key"), threads);
  ReplaceByNoise(rows.V(rows.v), value.quantised, DeriveSeed(seed, "value"), threads);
  candidate.control->Add(layer, sequence, measure());
}

void CheckPrefix(const TraceReader& trace, const Windows& windows, bool use_windows) {
  const Value* prefix = trace.header().manifest.Find("cached_prefix_len");
  if (prefix == nullptr || !prefix->is_int() || prefix->AsInt() == 0) return;
  if (!use_windows || windows.sink == 0) return;
  throw Error(ErrorCode::kData,
              fmt::format("{}: {} tokens in front of each sequence were not observed, so the first "
                          "rows are not the sink",
                          trace.path().string(), prefix->AsInt()),
              "dump without a prefix cache, or verify with --sink 0");
}

}  // namespace

void CheckSameLayers(const TraceSet& set) {
  for (const TraceReader& trace : set.traces()) {
    if (trace.header().layers == set.layers()) continue;
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("{}: holds {} of the {} layers of the other traces", trace.path().string(),
                    trace.header().layers.size(), set.layers().size()),
        "verify traces of the same layers together");
  }
}

std::vector<int> MeasuredLayers(const TraceSet& set, const KvScheme& scheme) {
  std::vector<int> layers = set.layers();
  if (!scheme.use_windows) return layers;
  const std::map<int, LayerShape> shapes = ShapesOf(set);
  std::erase_if(layers,
                [&](int layer) { return !SeesQuantisedKeys(shapes.at(layer), scheme.windows); });
  return layers;
}

SequenceChoice ChooseSequences(const TraceSet& set, const Windows& windows, bool use_windows) {
  SequenceChoice choice;
  const int64_t shortest = use_windows ? windows.ShortestUseful() : 1;
  int64_t longest = 0;
  std::set<std::string> seen;
  for (size_t t = 0; t < set.traces().size(); ++t) {
    const TraceReader& trace = set.traces()[t];
    CheckPrefix(trace, windows, use_windows);
    for (size_t i = 0; i < trace.header().sequences.size(); ++i) {
      const TraceSequence& sequence = trace.header().sequences[i];
      if (!sequence.has_rows) {
        ++choice.without_rows;
      } else if (!sequence.complete) {
        ++choice.incomplete;
      } else if (sequence.length < shortest) {
        ++choice.too_short;
        longest = std::max(longest, sequence.length);
      } else if (!sequence.sha256.empty() && !seen.insert(sequence.sha256).second) {
        throw Error(ErrorCode::kUsage,
                    fmt::format("{}: sequence {} stands in the traces twice and would count as two "
                                "samples",
                                trace.path().string(), i),
                    "give every trace once");
      } else {
        choice.sequences.push_back({t, i, sequence.length});
      }
    }
  }
  if (choice.sequences.empty() && choice.too_short == 0) {
    throw Error(ErrorCode::kData,
                "the traces hold no complete sequence with rows, so there is nothing to compare",
                "dump held-out text with --rows-tokens");
  }
  if (choice.sequences.empty()) ChooseQueries(longest, 1, windows, use_windows);
  for (const SequenceRef& sequence : choice.sequences) longest = std::max(longest, sequence.length);
  if (use_windows) choice.exact_layers = LayersKeptExact(ShapesOf(set), windows, longest);
  return choice;
}

std::vector<SchemeResult> EvaluateSchemes(const TraceSet& set,
                                          std::span<const SequenceRef> sequences,
                                          std::span<const KvScheme> schemes,
                                          const EvaluationSettings& settings,
                                          const RunContext& context) {
  OSCAR_CHECK(!schemes.empty() && !sequences.empty());
  for (const KvScheme& scheme : schemes) {
    OSCAR_CHECK(scheme.windows == schemes[0].windows);
    OSCAR_CHECK(scheme.use_windows == schemes[0].use_windows);
  }
  CheckSameLayers(set);
  const std::vector<int> layers = MeasuredLayers(set, schemes[0]);
  std::vector<Candidate> candidates = MakeCandidates(schemes, settings);
  context.progress->Begin("schemes on held-out rows",
                          static_cast<int64_t>(layers.size() * sequences.size()),
                          "layer sequences");
  for (const int layer : layers) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      context.cancel->ThrowIfCancelled("");
      const TraceReader& trace = set.traces()[sequences[s].trace];
      const auto read = [&](TraceReader::Rows which) {
        return trace.ReadRows(layer, which, sequences[s].index);
      };
      const LayerRows rows{trace.shape(layer), sequences[s].length, read(TraceReader::Rows::kQ),
                           read(TraceReader::Rows::kK), read(TraceReader::Rows::kV)};
      const std::vector<float> o_proj = trace.ReadOProj(layer).value_or(std::vector<float>());
      const std::vector<int64_t> queries =
          ChooseQueries(rows.tokens, settings.positions, schemes[0].windows, schemes[0].use_windows,
                        rows.shape.window);
      const AttentionReference exact(rows.shape, rows.Q(), rows.K(rows.k), rows.V(rows.v), queries,
                                     context.threads, o_proj);
      for (Candidate& candidate : candidates) {
        MeasureCandidate(candidate, exact, rows, queries.back() + 1, layer, s, !o_proj.empty(),
                         context.threads);
      }
      context.progress->Advance(1);
    }
  }
  context.progress->End();
  int64_t longest = 0;
  for (const SequenceRef& sequence : sequences) longest = std::max(longest, sequence.length);
  std::vector<SchemeResult> results;
  for (Candidate& candidate : candidates) {
    const double bits = MeanBitsPerElement(*candidate.scheme, set, longest);
    results.push_back(candidate.collector.Finish(bits));
    if (candidate.control.has_value()) results.push_back(candidate.control->Finish(bits));
  }
  return results;
}

double MeanBitsPerElement(const KvScheme& scheme, const TraceSet& set, int64_t tokens) {
  return MeanBitsPerElement(scheme, ShapesOf(set), tokens);
}

}  // namespace oscar
