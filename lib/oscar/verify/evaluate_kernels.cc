#include "oscar/verify/evaluate_kernels.h"

#include <algorithm>
#include <cmath>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/metrics/attention.h"
#include "oscar/verify/collector.h"
#include "oscar/verify/kernel_agreement.h"
#include "oscar/verify/kernel_case.h"
#include "oscar/verify/paged_batch.h"

namespace oscar {
namespace {

// Sequences are batched together up to this many tokens and slot-list entries (keys that some query
// sees), so that rows, lists and the exact logits of a batch stay in the hundreds of megabytes.
constexpr int64_t kBatchTokens = int64_t{1} << 17;
constexpr int64_t kBatchEntries = int64_t{1} << 23;

bool IsRows(const LayerScheme& scheme) {
  return scheme.key.quantiser.bits == 16 && scheme.value.quantiser.bits == 16;
}

std::vector<BFloat16> ToBFloat16Rows(const std::vector<float>& x) {
  std::vector<BFloat16> rows(x.size());
  std::ranges::transform(x, rows.begin(), [](float value) { return ToBFloat16(value); });
  return rows;
}

// One sequence's rows of a layer and its exact attention.
struct SequenceRows {
  size_t index = 0;  // among all sequences
  BatchSequence batch;
  std::vector<float> q, k, v;
  std::unique_ptr<AttentionReference> exact;
};

// Rows of some sequences of a layer, float32 by sequence and bfloat16 all together.
struct BatchRows {
  LayerShape shape;
  std::vector<float> o_proj;
  std::vector<SequenceRows> sequences;
  std::vector<BFloat16> q, k, v;  // q: of the queries only
};

HeadRows<const float> View(const std::vector<float>& x, int64_t tokens, int64_t heads,
                           int64_t dim) {
  return {x.data(), tokens, heads, dim};
}

void Append(std::vector<BFloat16>& to, const std::vector<float>& rows) {
  const std::vector<BFloat16> more = ToBFloat16Rows(rows);
  to.insert(to.end(), more.begin(), more.end());
}

BatchRows ReadBatch(const TraceSet& set, int layer, std::span<const SequenceRef> all,
                    std::span<const size_t> chosen, std::span<const BatchSequence> positions,
                    int threads) {
  BatchRows batch;
  batch.shape = set.traces().front().shape(layer);
  const LayerShape& s = batch.shape;
  for (const size_t index : chosen) {
    const TraceReader& trace = set.traces()[all[index].trace];
    const auto read = [&](TraceReader::Rows which) {
      return trace.ReadRows(layer, which, all[index].index);
    };
    // Sequences of one model share W_O.
    if (batch.o_proj.empty()) batch.o_proj = trace.ReadOProj(layer).value_or(std::vector<float>());
    batch.sequences.push_back({index, positions[index], read(TraceReader::Rows::kQ),
                               read(TraceReader::Rows::kK), read(TraceReader::Rows::kV), nullptr});
  }
  for (SequenceRows& rows : batch.sequences) {
    const int64_t tokens = rows.batch.tokens;
    const HeadRows<const float> q = View(rows.q, tokens, s.q_heads, s.k_dim);
    rows.exact = std::make_unique<AttentionReference>(
        s, q, View(rows.k, tokens, s.kv_heads, s.k_dim), View(rows.v, tokens, s.kv_heads, s.v_dim),
        rows.batch.queries, threads, batch.o_proj);
    for (const int64_t query : rows.batch.queries) {
      const float* const row = q.At(query, 0);
      Append(batch.q, std::vector<float>(row, row + s.q_heads * s.k_dim));
    }
    Append(batch.k, rows.k);
    Append(batch.v, rows.v);
  }
  return batch;
}

// Sequences in groups that fit the budget, by index.
std::vector<std::vector<size_t>> GroupSequences(const LayerShape& shape,
                                                std::span<const BatchSequence> sequences) {
  std::vector<std::vector<size_t>> groups;
  int64_t tokens = 0, entries = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t more = SlotEntries(shape, sequences[i]);
    if (groups.empty() || tokens + sequences[i].tokens > kBatchTokens ||
        entries + more > kBatchEntries) {
      groups.emplace_back();
      tokens = entries = 0;
    }
    groups.back().push_back(i);
    tokens += sequences[i].tokens;
    entries += more;
  }
  return groups;
}

// Sums over layers and batches of what the backend's clock says.
struct Clock {
  double write_ms = 0, decode_ms = 0, base_ms = 0;
  double write_bytes = 0, decode_bytes = 0, base_bytes = 0;
  int64_t batches = 0;

  void Add(const KernelOutput& out, const KernelOutput& base) {
    if (!out.decode_ms.has_value()) return;
    write_ms += out.write_ms.value_or(0);
    decode_ms += out.decode_ms.value_or(0);
    base_ms += base.decode_ms.value_or(0);
    write_bytes += static_cast<double>(out.write_bytes);
    decode_bytes += static_cast<double>(out.decode_bytes);
    base_bytes += static_cast<double>(base.decode_bytes);
    ++batches;
  }
  Value Describe(const std::string& name) const {
    const auto n = static_cast<double>(batches);
    return Value::Object{{"name", name},
                         {"launches", batches},
                         {"write_us", 1000 * write_ms / n},
                         {"write_bytes", write_bytes / n},
                         {"write_gb_s", 1e-6 * write_bytes / write_ms},
                         {"decode_us", 1000 * decode_ms / n},
                         {"decode_bytes", decode_bytes / n},
                         {"decode_gb_s", 1e-6 * decode_bytes / decode_ms},
                         {"bf16_us", 1000 * base_ms / n},
                         {"bf16_bytes", base_bytes / n},
                         {"speedup", base_ms / decode_ms},
                         {"byte_ratio", base_bytes / decode_bytes}};
  }
};

struct Candidate {
  const KvScheme* scheme;
  Collector collector;
  Clock clock;
};

class Evaluation {
 public:
  Evaluation(const EvaluationSettings& settings, KernelBackend& backend, const RunContext& context)
      : settings_(settings), backend_(backend), context_(context) {}

  void Measure(std::vector<Candidate>& candidates, const BatchRows& rows, int layer) {
    std::vector<BatchSequence> sequences;
    for (const SequenceRows& sequence : rows.sequences) sequences.push_back(sequence.batch);
    const KvScheme& first = *candidates.front().scheme;
    const uint64_t seed = DeriveSeed(settings_.seed, "pages of layer " + std::to_string(layer));
    const auto build = [&](TierRule rule) {
      return BuildBatch(rows.shape, sequences, first.windows, rule, seed);
    };
    const PagedBatch all_rows = build(TierRule::kRows);
    const PagedBatch quantised =
        build(first.use_windows ? TierRule::kWindows : TierRule::kQuantised);
    // The baseline runs beside every scheme, whether it is one of them or not.
    const LayerScheme bf16 = Bf16Layer();
    const KernelCase base_case = MakeCase(rows, bf16, all_rows);
    const KernelOutput base = RunKernels(base_case, backend_, true);
    for (Candidate& candidate : candidates) {
      context_.cancel->ThrowIfCancelled("");
      const LayerScheme& scheme = candidate.scheme->ForLayer(layer);
      if (IsRows(scheme)) {
        Add(candidate, rows, base_case, base, layer);
        candidate.clock.Add(base, base);
        continue;
      }
      const KernelCase one = MakeCase(rows, scheme, quantised);
      const KernelOutput out = RunKernels(one, backend_, true);
      Add(candidate, rows, one, out, layer);
      candidate.clock.Add(out, base);
    }
  }

 private:
  static LayerScheme Bf16Layer() {
    LayerScheme scheme;
    scheme.key.quantiser.bits = scheme.value.quantiser.bits = 16;
    return scheme;
  }

  static KernelCase MakeCase(const BatchRows& rows, const LayerScheme& scheme,
                             const PagedBatch& batch) {
    KernelCase c;
    c.shape = KernelShapeOf(rows.shape, scheme);
    c.logit_scale = static_cast<float>(rows.shape.softmax_scale);
    c.key = KernelSideOf(scheme.key, rows.shape.k_dim, rows.shape.kv_heads);
    c.value = KernelSideOf(scheme.value, rows.shape.v_dim, rows.shape.kv_heads);
    c.batch = &batch;
    c.q = &rows.q;
    c.k = &rows.k;
    c.v = &rows.v;
    return c;
  }

  void Add(Candidate& candidate, const BatchRows& rows, const KernelCase& c,
           const KernelOutput& out, int layer) const {
    const KernelAgreement agreement = CheckAgreement(c, out, context_.threads);
    Collector& to = candidate.collector;
    to.AddWorst(layer, "kernel_code_errors", static_cast<double>(agreement.wrong_bytes));
    to.AddWorst(layer, "kernel_row_error", agreement.row_error);
    to.AddWorst(layer, "kernel_output_error", agreement.output_error);
    to.AddWorst(layer, "kernel_lse_error", agreement.lse_error);
    for (size_t s = 0; s < rows.sequences.size(); ++s) {
      AddSequence(candidate, rows, c, out, layer, s);
    }
  }

  void AddSequence(Candidate& candidate, const BatchRows& rows, const KernelCase& c,
                   const KernelOutput& out, int layer, size_t s) const {
    const SequenceRows& sequence = rows.sequences[s];
    const LayerShape& shape = rows.shape;
    const int64_t tokens = sequence.batch.tokens;
    const HeadRows<const float> k = View(sequence.k, tokens, shape.kv_heads, shape.k_dim);
    const HeadRows<const float> v = View(sequence.v, tokens, shape.kv_heads, shape.v_dim);
    const TierRows key = ReadBack(c, c.key, out.key, s, k, context_.threads);
    const TierRows value = ReadBack(c, c.value, out.value, s, v, context_.threads);
    const auto k_view = [&](const std::vector<float>& x) {
      return View(x, tokens, shape.kv_heads, shape.k_dim);
    };
    const auto v_view = [&](const std::vector<float>& x) {
      return View(x, tokens, shape.kv_heads, shape.v_dim);
    };
    const KvScheme& scheme = *candidate.scheme;
    Measurement m;
    m.attention = sequence.exact->Compare(
        {k_view(key.quantised), v_view(value.quantised), k_view(key.window), v_view(value.window)},
        scheme.windows, scheme.use_windows, context_.threads);
    // Tokens behind the last chosen query are in nobody's cache.
    const int64_t seen = sequence.batch.queries.back() + 1;
    const auto compare = [&](HeadRows<const float> x, HeadRows<const float> x_hat,
                             HeadRows<const float> window) {
      return CompareRows(x.Slice(0, seen), x_hat.Slice(0, seen), window.Slice(0, seen),
                         scheme.windows, scheme.use_windows, shape.window);
    };
    m.key = compare(k, k_view(key.quantised), k_view(key.window));
    m.value = compare(v, v_view(value.quantised), v_view(value.window));
    // Outputs are the decode kernel's own, not those that follow from the cache.
    const int64_t begin = c.batch->request_begin[s];
    const auto count = static_cast<size_t>(c.batch->request_begin[s + 1] - begin);
    const auto width = static_cast<size_t>(shape.q_heads * shape.v_dim);
    const std::span<const float> o(out.o.data() + static_cast<size_t>(begin) * width,
                                   count * width);
    m.projected = !rows.o_proj.empty();
    m.attention.output_error = sequence.exact->OutputError(o);
    m.attention.projected_output_error = sequence.exact->ProjectedOutputError(o, context_.threads);
    candidate.collector.Add(layer, sequence.index, m);
    double lse = 0;
    for (size_t i = 0; i < count; ++i) {
      for (int64_t h = 0; h < shape.q_heads; ++h) {
        const auto at = (static_cast<size_t>(begin) + i) * static_cast<size_t>(shape.q_heads) +
                        static_cast<size_t>(h);
        lse += std::abs(static_cast<double>(out.lse[at]) -
                        sequence.exact->LogSum(static_cast<int64_t>(i), h));
      }
    }
    candidate.collector.Add(layer, sequence.index, "lse_error",
                            lse / static_cast<double>(count * static_cast<size_t>(shape.q_heads)));
  }

  const EvaluationSettings& settings_;
  KernelBackend& backend_;
  const RunContext& context_;
};

// The query positions of every sequence that a layer sees quantised keys at, as on the CPU.
std::vector<BatchSequence> ChoosePositions(std::span<const SequenceRef> sequences,
                                           const LayerShape& shape, const KvScheme& scheme,
                                           int64_t count) {
  std::vector<BatchSequence> positions;
  for (const SequenceRef& sequence : sequences) {
    positions.push_back({sequence.length, ChooseQueries(sequence.length, count, scheme.windows,
                                                        scheme.use_windows, shape.window)});
  }
  return positions;
}

}  // namespace

std::vector<KvScheme> KernelSchemes(std::vector<KvScheme> schemes, const TraceSet& set,
                                    std::vector<std::string>& notes) {
  std::vector<KvScheme> fit;
  for (KvScheme& scheme : schemes) {
    const LayerScheme& any = scheme.ForLayer(set.layers().front());
    if (any.key.quantiser.bits == 2 && any.key.quantiser.codebook != Codebook::kMinMax) {
      notes.push_back("scheme " + scheme.name +
                      " was left out: the kernels do not write its codes");
      continue;
    }
    for (const int layer : MeasuredLayers(set, scheme)) {
      KernelShapeOf(set.traces().front().shape(layer), scheme.ForLayer(layer));
    }
    fit.push_back(std::move(scheme));
  }
  if (fit.empty()) {
    throw Error(ErrorCode::kUsage, "none of the schemes runs on the kernels",
                "--device cpu measures them all");
  }
  return fit;
}

KernelEvaluation EvaluateOnKernels(const TraceSet& set, std::span<const SequenceRef> sequences,
                                   std::span<const KvScheme> schemes,
                                   const EvaluationSettings& settings, KernelBackend& backend,
                                   const RunContext& context) {
  OSCAR_CHECK(!schemes.empty() && !sequences.empty());
  CheckSameLayers(set);
  std::vector<Candidate> candidates;
  for (const KvScheme& scheme : schemes) {
    OSCAR_CHECK(scheme.windows == schemes[0].windows);
    OSCAR_CHECK(scheme.use_windows == schemes[0].use_windows);
    candidates.push_back({&scheme, Collector(scheme.name, scheme.label, false), {}});
  }
  int64_t longest = 0;
  for (const SequenceRef& sequence : sequences) longest = std::max(longest, sequence.length);
  const std::vector<int> layers = MeasuredLayers(set, schemes[0]);
  Evaluation evaluation(settings, backend, context);
  context.progress->Begin("schemes on the kernels",
                          static_cast<int64_t>(layers.size() * sequences.size()),
                          "layer sequences");
  for (const int layer : layers) {
    const LayerShape& shape = set.traces().front().shape(layer);
    const std::vector<BatchSequence> positions =
        ChoosePositions(sequences, shape, schemes[0], settings.positions);
    for (const std::vector<size_t>& group : GroupSequences(shape, positions)) {
      context.cancel->ThrowIfCancelled("");
      evaluation.Measure(
          candidates, ReadBatch(set, layer, sequences, group, positions, context.threads), layer);
      context.progress->Advance(static_cast<int64_t>(group.size()));
    }
  }
  context.progress->End();
  KernelEvaluation result;
  result.device = backend.Describe();
  for (Candidate& candidate : candidates) {
    result.results.push_back(
        candidate.collector.Finish(MeanBitsPerElement(*candidate.scheme, set, longest)));
    if (candidate.clock.batches > 0) {
      result.times.push_back(candidate.clock.Describe(candidate.scheme->name));
    }
  }
  return result;
}

}  // namespace oscar
