#include "oscar/dump/estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "oscar/core/random.h"
#include "oscar/model/observer.h"
#include "oscar/model/runner.h"

namespace oscar {
namespace {

// Long enough to leave start-up costs behind, short enough to answer at once.
constexpr int64_t kProbeTokens = 256;

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

int64_t MomentBytes(const LayerShape& shape, const std::vector<Moment>& moments) {
  int64_t bytes = 0;
  for (const Moment id : moments) {
    int64_t size = 8;
    for (const int64_t dim : MomentShape(id, shape)) size *= dim;
    bytes += size;
  }
  return bytes;
}

// bfloat16 q, k, v of one token.
int64_t RowBytes(const LayerShape& shape) {
  return 2 * (shape.q_heads * shape.k_dim + shape.kv_heads * (shape.k_dim + shape.v_dim));
}

int64_t RowTokens(const TraceHeader& header) {
  int64_t tokens = 0;
  for (const TraceSequence& s : header.sequences) tokens += s.has_rows ? s.length : 0;
  return tokens;
}

int64_t Tokens(const TraceHeader& header) {
  return header.sequences.back().start + header.sequences.back().length;
}

int64_t Longest(const TraceHeader& header) {
  int64_t longest = 0;
  for (const TraceSequence& s : header.sequences) longest = std::max(longest, s.length);
  return longest;
}

// What the observer holds of one layer: moments twice (sums and their copy in the capture), kept
// rows, and all keys and values when the score weights need a second pass.
int64_t ObserverBytes(const LayerShape& shape, const CaptureSpec& spec, const TraceHeader& header) {
  const bool second_pass =
      std::find(spec.moments.begin(), spec.moments.end(), Moment::kSst) != spec.moments.end();
  const int64_t kv_bytes = 4 * shape.kv_heads * (shape.k_dim + shape.v_dim);
  return 2 * MomentBytes(shape, spec.moments) + RowTokens(header) * RowBytes(shape) +
         (second_pass ? Tokens(header) * kv_bytes : 0);
}

// Multiply-adds per token of one layer in a sequence of `length` tokens: projections and MLP,
// causal scores and outputs (half the square each), second moments.
double WorkPerToken(const ModelConfig& config, const LayerShape& shape, int64_t length) {
  const auto real = [](int64_t x) { return static_cast<double>(x); };
  const double q = real(shape.q_heads * shape.k_dim);
  const double kv = real(shape.kv_heads * (shape.k_dim + shape.v_dim));
  const double o = real(shape.q_heads * shape.v_dim);
  const double hidden = real(config.hidden);
  const double span = real(shape.window > 0 ? std::min(shape.window, length) : length);
  return hidden * (q + kv + o + 3 * real(config.intermediate)) + (q + o) * span / 2 +
         q * real(shape.k_dim) + o * real(shape.v_dim) + kv * real(shape.k_dim + shape.v_dim);
}

}  // namespace

int64_t TraceBytes(const std::vector<LayerShape>& layers, const CaptureSpec& spec,
                   const TraceHeader& header) {
  int64_t bytes = static_cast<int64_t>(8 * header.ngram_hashes.size());
  for (const LayerShape& shape : layers) {
    bytes += MomentBytes(shape, spec.moments) + RowTokens(header) * RowBytes(shape) +
             2 * shape.hidden * shape.q_heads * shape.v_dim;
  }
  return bytes;
}

DumpEstimate EstimateModelDump(const ModelWeights& model, const CaptureSpec& spec,
                               const TraceHeader& header,
                               const std::vector<std::vector<int32_t>>& sequences,
                               const DumpOptions& options, const RunContext& context) {
  const ModelConfig& config = model.config();
  std::vector<LayerShape> shapes;
  for (const int layer : header.layers) shapes.push_back(config.ShapeOfLayer(layer));
  DumpEstimate estimate;
  estimate.trace_bytes = TraceBytes(shapes, spec, header);
  const int64_t state = 4 * Tokens(header) * config.hidden;
  estimate.scratch_bytes = estimate.trace_bytes + 2 * state;
  int64_t moments = 0;
  for (const LayerShape& shape : shapes) {
    moments = std::max(moments, MomentBytes(shape, spec.moments));
  }
  // The runner counts all but the copy of the sums that is on its way to the file.
  estimate.memory_bytes = EstimateRunnerBytes(config, Tokens(header), Longest(header), 1) + moments;

  std::vector<int32_t> ids = sequences.front();
  ids.resize(
      static_cast<size_t>(std::min<int64_t>(kProbeTokens, static_cast<int64_t>(ids.size()))));
  const double probe_tokens = static_cast<double>(ids.size());
  ModelRunner runner(model, {ids}, options.device, context);
  CaptureSpec probe = spec;
  probe.row_sequences = 0;
  const int64_t layers = config.layers;
  const int64_t timed = std::min<int64_t>(1, layers - 1);
  // The first layer pays for the start of the libraries; the next one is timed.
  for (int64_t layer = 0; layer < timed; ++layer) {
    LayerCapture capture;
    runner.RunLayer(&probe, &capture);
  }
  const auto load_begin = std::chrono::steady_clock::now();
  model.LoadLayer(timed, context.threads);
  const double load = SecondsSince(load_begin);
  const auto run_begin = std::chrono::steady_clock::now();
  LayerCapture capture;
  runner.RunLayer(&probe, &capture);
  const double run = std::max(0.0, SecondsSince(run_begin) - load);
  const LayerShape shape = config.ShapeOfLayer(timed);
  double work = 0;
  for (const TraceSequence& s : header.sequences) {
    work += static_cast<double>(s.length) * WorkPerToken(config, shape, s.length);
  }
  const double probe_work =
      probe_tokens * WorkPerToken(config, shape, static_cast<int64_t>(ids.size()));
  estimate.seconds =
      static_cast<double>(header.layers.back() + 1) * (load + run * work / probe_work);
  estimate.time_basis =
      fmt::format("one layer measured with {} tokens, scaled by the arithmetic", ids.size());
  return estimate;
}

DumpEstimate EstimateImport(const ImportSurvey& survey, const CaptureSpec& spec,
                            const TraceHeader& header, const RunContext& context) {
  DumpEstimate estimate;
  std::vector<LayerShape> shapes;
  for (const int layer : survey.layers) shapes.push_back(survey.shapes.at(layer));
  estimate.trace_bytes = TraceBytes(shapes, spec, header);
  estimate.scratch_bytes = estimate.trace_bytes;
  // The longest sequence's rows may have to be copied together, and its attention is float64.
  for (const LayerShape& shape : shapes) {
    estimate.memory_bytes =
        std::max(estimate.memory_bytes,
                 ObserverBytes(shape, spec, header) + 5 * Longest(header) * RowBytes(shape));
  }

  const LayerShape& shape = shapes.front();
  Random random(1);
  const auto rows = [&](int64_t heads, int64_t dim) {
    std::vector<BFloat16> data(static_cast<size_t>(kProbeTokens * heads * dim));
    for (BFloat16& x : data) x = ToBFloat16(static_cast<float>(random.Uniform() - 0.5));
    return data;
  };
  const auto q = rows(shape.q_heads, shape.k_dim);
  const auto k = rows(shape.kv_heads, shape.k_dim);
  const auto v = rows(shape.kv_heads, shape.v_dim);
  const auto observe = [&] {
    CaptureSpec probe = spec;
    probe.row_sequences = 0;
    RowObserver observer(0, shape, probe, context.threads);
    observer.AddSequence({q.data(), kProbeTokens, shape.q_heads, shape.k_dim},
                         {k.data(), kProbeTokens, shape.kv_heads, shape.k_dim},
                         {v.data(), kProbeTokens, shape.kv_heads, shape.v_dim});
    observer.Finish();
  };
  observe();  // the first call pays for the start of the libraries
  const auto begin = std::chrono::steady_clock::now();
  observe();
  estimate.seconds = SecondsSince(begin) * static_cast<double>(Tokens(header)) / kProbeTokens *
                     static_cast<double>(survey.layers.size());
  estimate.time_basis = fmt::format(
      "one layer measured with {} tokens, scaled by the number of tokens; reading the "
      "files is not counted",
      kProbeTokens);
  return estimate;
}

}  // namespace oscar
