#include "oscar/calibrate/calibrate.h"

#include <fmt/format.h>

#include <chrono>
#include <map>
#include <set>
#include <utility>

#include "oscar/calibrate/clips.h"
#include "oscar/calibrate/layer_fits.h"
#include "oscar/calibrate/manifest.h"
#include "oscar/calibrate/recommendation.h"
#include "oscar/calibrate/summary.h"
#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/core/parallel.h"
#include "oscar/core/printable.h"
#include "oscar/linalg/blas.h"
#include "oscar/quant/packing.h"
#include "oscar/trace/trace.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

std::vector<std::string> HashTraces(const CalibrateOptions& options, int threads) {
  std::vector<std::string> hashes(options.traces.size());
  ParallelFor(static_cast<int64_t>(hashes.size()), threads, [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    hashes[index] = Sha256File(options.traces[index].string());
  });
  std::map<std::string, std::string> seen;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto [first, fresh] = seen.emplace(hashes[i], options.traces[i].string());
    if (!fresh) {
      throw Error(
          ErrorCode::kUsage,
          fmt::format("{} and {} are the same trace", first->second, options.traces[i].string()),
          "its tokens would count twice");
    }
  }
  return hashes;
}

// A rotation for heads that no 2-bit cache can hold would be of no use.
void CheckShapes(const TraceSet& traces) {
  for (const TraceReader& trace : traces.traces()) {
    std::map<int, LayerShape> shapes;
    for (const int layer : trace.header().layers) shapes[layer] = trace.shape(layer);
    RequirePackable(shapes, trace.path().string());
  }
}

// The same text twice in the moments of one layer weighs twice: odd, but not wrong. Traces of the
// same text with different layers are the parts of one dump.
void WarnAboutRepeats(const TraceSet& traces, const RunContext& context) {
  std::set<std::pair<std::string, int>> seen;
  int64_t repeated = 0;
  for (const TraceReader& trace : traces.traces()) {
    for (const TraceSequence& sequence : trace.header().sequences) {
      if (sequence.sha256.empty()) continue;
      bool fresh = true;
      for (const int layer : trace.header().layers) {
        fresh = seen.emplace(sequence.sha256, layer).second && fresh;
      }
      repeated += fresh ? 0 : 1;
    }
  }
  if (repeated > 0) {
    context.progress->Warn(
        fmt::format("{} repeated among the traces: such text counts twice",
                    Counted(repeated, "sequence") + (repeated == 1 ? " is" : " are")));
  }
}

void WarnAboutGrouping(const CalibrateOptions& options, const Recommendation& recommendation,
                       const RunContext& context) {
  if (recommendation.grouping == Grouping::kLayer || options.grouping == Grouping::kHead) return;
  context.progress->Warn("one rotation per KV head is recommended (--grouping head): " +
                         recommendation.reason);
}

ZooFile MakeFile(const std::map<int, LayerFits>& fits, SideFits LayerFits::*side,
                 Composition composition) {
  ZooFile file;
  const SideFits& first = fits.begin()->second.*side;
  const bool per_head = first.grouping == Grouping::kHead;
  file.format_version = per_head ? 2 : 1;
  file.objective = Objective(first.target, composition);
  file.source_grouping = per_head ? "per_kv_head" : "layer";
  for (const auto& [layer, fit] : fits) {
    const SideFits& here = fit.*side;
    ZooLayer& entry = file.layers[layer];
    entry.heads = per_head ? static_cast<int64_t>(here.rotations.size()) : 0;
    entry.dim = here.dim;
    for (const RotationFit& rotation : here.rotations) {
      entry.rotation.insert(entry.rotation.end(), rotation.stored.begin(), rotation.stored.end());
    }
    if (per_head) continue;
    for (const double value : here.rotations.front().eigen.values) {
      entry.eigenvalues.push_back(static_cast<float>(value));
    }
  }
  return file;
}

std::string FileName(const char* side, const ZooFile& file) {
  return fmt::format("{}_rotation_{}.pt", side, file.objective);
}

}  // namespace

CalibrateResult Calibrate(const CalibrateOptions& options, const RunContext& context) {
  const auto start = std::chrono::steady_clock::now();
  options.Check();
  // Matrices are fitted in parallel, each by one BLAS thread: the bits do not depend on the number
  // of threads, and small eigenproblems gain nothing from more.
  SetBlasThreads(1);
  const TraceSet traces(options.traces);
  CheckShapes(traces);
  const std::vector<std::string> hashes = HashTraces(options, context.threads);
  WarnAboutRepeats(traces, context);
  const std::map<int, LayerFits> fits = FitLayers(traces, options, context);
  const Clips clips = ChooseClips(traces, fits, options, context);
  const Recommendation recommendation = Recommend(fits, clips);
  WarnAboutGrouping(options, recommendation, context);

  CalibrateResult result;
  result.manifest = MakeManifest(options, traces, hashes, fits, clips, recommendation);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  result.manifest["volatile"] = Value::Object{
      {"seconds", seconds.count()}, {"threads", context.threads}, {"blas", BlasDescription()}};
  const ZooFile key = MakeFile(fits, &LayerFits::key, options.fit.composition);
  const ZooFile value = MakeFile(fits, &LayerFits::value, options.fit.composition);
  if (context.cancel != nullptr) context.cancel->ThrowIfCancelled("nothing was written");
  WriteZooEntry(options.out, key, value, FileName("k", key), FileName("v", value), result.manifest,
                options.force);
  result.summary = SummaryText(options, fits, clips, recommendation);
  const std::vector<std::string> notes = NotesOf(options);
  result.record = Value::Object{{"schema", "oscar.calibrate/1"},
                                {"folder", options.out.string()},
                                {"notes", Value::Array(notes.begin(), notes.end())},
                                {"manifest", result.manifest}};
  return result;
}

std::string BlasLibrary() { return BlasDescription(); }

}  // namespace oscar
