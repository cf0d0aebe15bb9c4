#include "oscar/calibrate/clips.h"

#include <fmt/format.h>

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/quant/windows.h"

namespace oscar {
namespace {

// A sequence with rows, long enough to have quantised positions.
struct Candidate {
  const TraceReader* trace;
  size_t index;
  int64_t length;
};

bool Holds(const TraceReader& trace, int layer) {
  const std::vector<int>& layers = trace.header().layers;
  return std::binary_search(layers.begin(), layers.end(), layer);
}

std::vector<Candidate> FindCandidates(const TraceSet& traces, const Windows& windows) {
  std::vector<Candidate> candidates;
  int64_t longest = 0;
  bool any_rows = false;
  for (const TraceReader& trace : traces.traces()) {
    const std::vector<TraceSequence>& sequences = trace.header().sequences;
    for (size_t i = 0; i < sequences.size(); ++i) {
      if (!sequences[i].has_rows) continue;
      any_rows = true;
      longest = std::max(longest, sequences[i].length);
      if (sequences[i].length >= windows.ShortestUseful()) {
        candidates.push_back({&trace, i, sequences[i].length});
      }
    }
  }
  if (!any_rows) {
    throw Error(ErrorCode::kData, "clip search needs rows, and no trace has any",
                "record rows with oscar-dump --rows-tokens, or give ratios: --clip 0.96,0.92");
  }
  if (candidates.empty()) {
    throw Error(ErrorCode::kData,
                fmt::format("no position is quantised: {} need sequences of at least {} tokens, "
                            "the longest with rows has {}",
                            WindowsText(windows), windows.ShortestUseful(), longest),
                "use longer sequences (oscar-dump --window), smaller --sink and --recent, or give "
                "ratios: --clip 0.96,0.92");
  }
  return candidates;
}

int64_t LongestOf(const std::vector<Candidate>& candidates) {
  int64_t longest = 0;
  for (const Candidate& candidate : candidates) longest = std::max(longest, candidate.length);
  return longest;
}

std::map<int, LayerShape> ShapesOf(const std::map<int, LayerFits>& fits) {
  std::map<int, LayerShape> shapes;
  for (const auto& [layer, fit] : fits) shapes[layer] = fit.shape;
  return shapes;
}

// Up to `count` of the candidates that hold the layer, evenly spaced.
std::vector<Candidate> PickFor(const std::vector<Candidate>& candidates, int layer, int64_t count) {
  std::vector<Candidate> holders;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(holders),
               [&](const Candidate& c) { return Holds(*c.trace, layer); });
  if (holders.empty()) {
    throw Error(ErrorCode::kData,
                fmt::format("layer {}: no trace with this layer has rows for clip search", layer));
  }
  const auto have = static_cast<int64_t>(holders.size());
  const int64_t take = std::min(count, have);
  std::vector<Candidate> picked;
  for (int64_t i = 0; i < take; ++i) {
    picked.push_back(holders[static_cast<size_t>((2 * i + 1) * have / (2 * take))]);
  }
  return picked;
}

std::vector<SequenceRows> ReadSequences(const std::vector<Candidate>& picked, int layer) {
  std::vector<SequenceRows> sequences;
  for (const Candidate& candidate : picked) {
    const auto read = [&](TraceReader::Rows which) {
      return candidate.trace->ReadRows(layer, which, candidate.index);
    };
    sequences.push_back({candidate.length, read(TraceReader::Rows::kQ), read(TraceReader::Rows::kK),
                         read(TraceReader::Rows::kV)});
  }
  return sequences;
}

// Runs `body`, naming the layer in whatever goes wrong.
template <typename Body>
auto AtLayer(int layer, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("layer {}: {}", layer, error.what()), error.hint());
  }
}

using Loss = std::function<double(double)>;

// The curve of one side, and the other grouping near its best ratio where there is one.
void SearchSide(const std::vector<double>& ratios, int layer, int64_t dim, const Loss& loss,
                const Loss* other, int threads, SideClips& clips) {
  const ClipCurve curve = AtLayer(layer, [&] { return SearchClip(ratios, dim, loss, threads); });
  const size_t best = curve.Best();
  clips.ratios[layer] = ratios[best];
  if (other != nullptr) {
    clips.measured[layer] = {curve.losses[best], DescendClip(ratios, dim, best, *other)};
  }
  clips.curves[layer] = curve;
}

void SearchLayer(const std::vector<SequenceRows>& rows, int layer, const LayerFits& fit,
                 const ClipSearchSettings& settings, const std::vector<double>& ratios, int threads,
                 Clips& clips) {
  const ClipProblem problem = AtLayer(layer, [&] {
    return ClipProblem(fit.shape, rows, fit.key.Rotation(), fit.value.Rotation(), settings,
                       threads);
  });
  std::optional<ClipProblem> other;
  if (!fit.key.other.empty() || !fit.value.other.empty()) {
    other.emplace(fit.shape, rows, fit.key.OtherRotation(), fit.value.OtherRotation(), settings,
                  threads);
  }
  const Loss key = [&](double ratio) { return problem.KeyLoss(ratio); };
  const Loss value = [&](double ratio) { return problem.ValueLoss(ratio); };
  const Loss other_key = [&](double ratio) { return other->KeyLoss(ratio); };
  const Loss other_value = [&](double ratio) { return other->ValueLoss(ratio); };
  SearchSide(ratios, layer, fit.shape.k_dim, key, fit.key.other.empty() ? nullptr : &other_key,
             threads, clips.key);
  SearchSide(ratios, layer, fit.shape.v_dim, value,
             fit.value.other.empty() ? nullptr : &other_value, threads, clips.value);
}

// A best ratio at the low end means that the grid, not the loss, decided.
void WarnAboutEnds(const SideClips& clips, const char* side, const ClipGrid& grid,
                   const RunContext& context) {
  std::string layers;
  for (const auto& [layer, ratio] : clips.ratios) {
    if (ratio == grid.low) layers += fmt::format("{}{}", layers.empty() ? "" : ", ", layer);
  }
  if (layers.empty() || grid.low == grid.high) return;
  context.progress->Warn(fmt::format(
      "{} clip: the best ratio lies at the low end {} of the grid in layers {}; --clip-grid widens "
      "it",
      side, grid.low, layers));
}

void UseSingleRatios(Clips& clips, const RunContext& context) {
  if (clips.exact_layers.empty()) return;
  for (const int layer : clips.exact_layers) {
    clips.key.ratios[layer] = clips.key.single->ratio;
    clips.value.ratios[layer] = clips.value.single->ratio;
  }
  context.progress->Warn(fmt::format(
      "clip search left out {} {}: nothing in {} is quantised, because the sliding window lies "
      "within the recent tokens; the best single ratios are used",
      clips.exact_layers.size() == 1 ? "layer" : "layers", fmt::join(clips.exact_layers, ", "),
      clips.exact_layers.size() == 1 ? "it" : "them"));
}

QuantiserSpec Quantiser(const CalibrateOptions& options) {
  QuantiserSpec quantiser;
  quantiser.group_size = options.group_size;
  quantiser.scale_type = options.scale_type;
  return quantiser;
}

Clips FixedClips(const std::map<int, LayerFits>& fits, double key, double value) {
  Clips clips;
  for (const auto& [layer, fit] : fits) {
    clips.key.ratios[layer] = key;
    clips.value.ratios[layer] = value;
  }
  return clips;
}

}  // namespace

Clips ChooseClips(const TraceSet& traces, const std::map<int, LayerFits>& fits,
                  const CalibrateOptions& options, const RunContext& context) {
  for (const auto& [layer, fit] : fits) {
    AtLayer(layer, [&] {
      Quantiser(options).Validate(fit.shape.k_dim);
      Quantiser(options).Validate(fit.shape.v_dim);
    });
  }
  if (options.clip.policy == ClipPolicy::kOff) return FixedClips(fits, 1, 1);
  if (options.clip.policy == ClipPolicy::kFixed) {
    return FixedClips(fits, options.clip.key, options.clip.value);
  }
  const std::vector<Candidate> candidates = FindCandidates(traces, options.windows);
  const std::vector<double> ratios = options.clip.grid.Ratios();
  const ClipSearchSettings settings{options.windows, options.clip.queries, Quantiser(options)};
  Clips clips;
  clips.queries = options.clip.queries;
  clips.exact_layers = LayersKeptExact(ShapesOf(fits), options.windows, LongestOf(candidates));
  const auto searched = static_cast<int64_t>(fits.size() - clips.exact_layers.size());
  context.progress->Begin("searching clip ratios", searched, "layers");
  for (const auto& [layer, fit] : fits) {
    if (std::ranges::binary_search(clips.exact_layers, layer)) continue;
    if (context.cancel != nullptr) context.cancel->ThrowIfCancelled("nothing was written");
    const std::vector<Candidate> picked = PickFor(candidates, layer, options.clip.sequences);
    clips.sequences = std::max(clips.sequences, static_cast<int64_t>(picked.size()));
    SearchLayer(ReadSequences(picked, layer), layer, fit, settings, ratios, context.threads, clips);
    context.progress->Advance(1);
  }
  context.progress->End();
  clips.key.single = BestSingleClip(clips.key.curves);
  clips.value.single = BestSingleClip(clips.value.curves);
  WarnAboutEnds(clips.key, "key", options.clip.grid, context);
  WarnAboutEnds(clips.value, "value", options.clip.grid, context);
  UseSingleRatios(clips, context);
  return clips;
}

}  // namespace oscar
