#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "oscar/core/error.h"
#include "oscar/stats/sst.h"
#include "oscar/trace/trace.h"

namespace oscar {
namespace {

// Manifest keys that must agree among traces of one model, where both sides know them.
constexpr const char* kModelKeys[] = {"model_id", "config_hash", "weights_fingerprint",
                                      "capture_point"};

std::string Describe(const Value* value) {
  if (value == nullptr || value->is_null()) return "";
  return value->is_string() ? value->AsString() : value->ToJson();
}

void RequireSameModel(const TraceReader& first, const TraceReader& other) {
  for (const char* key : kModelKeys) {
    const std::string a = Describe(first.header().manifest.Find(key));
    const std::string b = Describe(other.header().manifest.Find(key));
    if (a.empty() || b.empty() || a == b) continue;
    throw Error(ErrorCode::kMismatch,
                fmt::format("{}: {} is '{}', but '{}' in {}", other.path().string(), key, b, a,
                            first.path().string()),
                "traces of one set must come from the same model");
  }
}

bool Holds(const TraceReader& trace, int layer) {
  const std::vector<int>& layers = trace.header().layers;
  return std::binary_search(layers.begin(), layers.end(), layer);
}

bool EveryTokenHasRows(const TraceReader& trace) {
  const auto& sequences = trace.header().sequences;
  return std::all_of(sequences.begin(), sequences.end(),
                     [](const TraceSequence& s) { return s.has_rows; });
}

void AddRows(const TraceReader& trace, int layer, const std::vector<Matrix>& scores,
             LayerMoments& moments) {
  const LayerShape& shape = moments.shape;
  for (size_t i = 0; i < trace.header().sequences.size(); ++i) {
    const int64_t tokens = trace.header().sequences[i].length;
    const std::vector<float> k = trace.ReadRows(layer, TraceReader::Rows::kK, i);
    const std::vector<float> v = trace.ReadRows(layer, TraceReader::Rows::kV, i);
    AddSst(scores, {k.data(), tokens, shape.kv_heads, shape.k_dim},
           {v.data(), tokens, shape.kv_heads, shape.v_dim}, moments.sums[Moment::kSst],
           moments.sums[Moment::kSstWeight]);
  }
}

}  // namespace

TraceSet::TraceSet(const std::vector<std::filesystem::path>& paths) {
  if (paths.empty()) throw Error(ErrorCode::kUsage, "no trace was given");
  std::set<int> layers;
  for (const std::filesystem::path& path : paths) {
    traces_.emplace_back(path);
    const TraceReader& trace = traces_.back();
    RequireSameModel(traces_.front(), trace);
    for (const int layer : trace.header().layers) {
      layers.insert(layer);
      const auto first = std::find_if(traces_.begin(), traces_.end(),
                                      [&](const TraceReader& t) { return Holds(t, layer); });
      if (first->shape(layer) == trace.shape(layer)) continue;
      LayerMoments a, b;
      a.shape = first->shape(layer);
      b.shape = trace.shape(layer);
      try {
        Merge(a, b);
      } catch (const Error& error) {
        throw Error(ErrorCode::kMismatch,
                    fmt::format("{}: layer {} differs from {}: {}", path.string(), layer,
                                first->path().string(), error.what()));
      }
    }
  }
  layers_.assign(layers.begin(), layers.end());
}

LayerMoments TraceSet::Moments(int layer) const {
  std::vector<const TraceReader*> holders;
  for (const TraceReader& trace : traces_) {
    if (Holds(trace, layer)) holders.push_back(&trace);
  }
  if (holders.empty()) {
    throw Error(ErrorCode::kData,
                fmt::format("no trace has layer {}; layers are {}", layer, layers_));
  }
  LayerMoments merged = holders.front()->ReadMoments(layer);
  bool all_have_sst = merged.Has(Moment::kSst);
  for (size_t i = 1; i < holders.size(); ++i) {
    const LayerMoments next = holders[i]->ReadMoments(layer);
    all_have_sst = all_have_sst && next.Has(Moment::kSst);
    Merge(merged, next);
  }
  const bool lost_sst = all_have_sst && !merged.Has(Moment::kSst) && merged.Has(Moment::kQq);
  const bool have_rows = std::all_of(holders.begin(), holders.end(),
                                     [](const TraceReader* t) { return EveryTokenHasRows(*t); });
  if (!lost_sst || !have_rows) return merged;
  // The score weights follow the merged qq, so the sums must be formed anew.
  const std::vector<Matrix> scores = ScoreMatrices(merged);
  for (const Moment id : {Moment::kSst, Moment::kSstWeight}) {
    MomentTensor zero{MomentShape(id, merged.shape), {}};
    int64_t size = 1;
    for (const int64_t dim : zero.shape) size *= dim;
    zero.data.assign(static_cast<size_t>(size), 0);
    merged.sums[id] = std::move(zero);
  }
  for (const TraceReader* trace : holders) AddRows(*trace, layer, scores, merged);
  merged.sst_qq_hash = HashOf(merged.At(Moment::kQq));
  return merged;
}

}  // namespace oscar
