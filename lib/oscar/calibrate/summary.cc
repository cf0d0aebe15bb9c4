#include "oscar/calibrate/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "oscar/core/hadamard.h"
#include "oscar/core/printable.h"
#include "oscar/zoo/entry.h"

namespace oscar {
namespace {

// Largest over smallest eigenvalue, the worst of the heads; "-" for a data-free side.
std::string Condition(const SideFits& fit) {
  if (!fit.target) return "-";
  double worst = 0;
  for (const RotationFit& rotation : fit.rotations) {
    worst = std::max(worst, rotation.eigen.values.back() / rotation.eigen.values.front());
  }
  return fmt::format("{:.1e}", worst);
}

std::string Ratio(const SideFits& fit) {
  if (!fit.target) return "-";
  const std::optional<double> ratio = fit.predicted.Ratio();
  return ratio ? fmt::format("{:.2f}", *ratio) : "unknown";
}

std::string BestLoss(const SideClips& clips, int layer) {
  const auto curve = clips.curves.find(layer);
  if (curve == clips.curves.end()) return "-";
  return fmt::format("{:.4f}", curve->second.losses[curve->second.Best()]);
}

double WorstServed(const std::map<int, LayerFits>& fits) {
  double worst = 0;
  for (const auto& [layer, fit] : fits) {
    for (const SideFits* side : {&fit.key, &fit.value}) {
      for (const RotationFit& rotation : side->rotations) {
        worst = std::max(worst, rotation.orthogonality.as_served);
      }
    }
  }
  return worst;
}

void AddTable(const std::map<int, LayerFits>& fits, const Clips& clips, std::string& text) {
  text += fmt::format("{:>5}  {:>8} {:>8}  {:>7} {:>7}  {:>6} {:>9}  {:>6} {:>9}\n", "layer",
                      "cond K", "cond V", "shr/hd", "shr/hd", "c_K", "KL", "c_V", "error");
  for (const auto& [layer, fit] : fits) {
    text += fmt::format("{:>5}  {:>8} {:>8}  {:>7} {:>7}  {:>6g} {:>9}  {:>6g} {:>9}\n", layer,
                        Condition(fit.key), Condition(fit.value), Ratio(fit.key), Ratio(fit.value),
                        clips.key.ratios.at(layer), BestLoss(clips.key, layer),
                        clips.value.ratios.at(layer), BestLoss(clips.value, layer));
  }
  text +=
      "shr/hd: predicted loss of one rotation per layer over one per KV head, keys and values\n";
}

void AddHadamardNote(const std::map<int, LayerFits>& fits, std::string& text) {
  std::set<int64_t> dims;
  for (const auto& [layer, fit] : fits) {
    for (const int64_t dim : {fit.shape.k_dim, fit.shape.v_dim}) {
      if (HadamardBlock(dim) != dim) dims.insert(dim);
    }
  }
  for (const int64_t dim : dims) {
    text += fmt::format("head_dim {} is no power of two: block Hadamard of {} x {}\n", dim,
                        dim / HadamardBlock(dim), HadamardBlock(dim));
  }
}

void AddSingle(const Clips& clips, std::string& text) {
  if (!clips.key.single) return;
  const SingleClip& key = *clips.key.single;
  const SingleClip& value = *clips.value.single;
  text += fmt::format(
      "one pair for all layers: {:g},{:g}: attention KL {:.4f} ({:.4f} with a ratio per layer), "
      "output error {:.4f} ({:.4f})\n",
      key.ratio, value.ratio, key.loss, key.per_layer_loss, value.loss, value.per_layer_loss);
}

std::string Number(const std::optional<double>& ratio) {
  return ratio ? fmt::format("{:.2f}", *ratio) : "-";
}

void AddRecommendation(const Recommendation& recommendation, std::string& text) {
  text += fmt::format("recommended: one rotation per {}{}\n", GroupingName(recommendation.grouping),
                      recommendation.disputed
                          ? "; prediction and rows disagree, compare both with oscar-verify"
                          : "");
  const std::pair<const char*, const SideRatios*> sides[] = {{"keys", &recommendation.key},
                                                             {"values", &recommendation.value}};
  for (const auto& [name, ratios] : sides) {
    text += fmt::format("  {:<6}  predicted {:>6}  measured {:>6}\n", name,
                        Number(ratios->predicted), Number(ratios->measured));
  }
  text += fmt::format(
      "  (loss of one rotation per layer over one per KV head, mean over layers; per head pays "
      "from "
      "{:g} predicted or {:g} measured)\n",
      kPredictedThreshold, kMeasuredThreshold);
}

}  // namespace

std::vector<std::string> NotesOf(const CalibrateOptions& options) {
  std::vector<std::string> notes;
  for (const auto& [name, tokens] :
       {std::pair{"sink", options.windows.sink}, std::pair{"recent", options.windows.recent}}) {
    if (tokens % kServedPageTokens == 0) continue;
    notes.push_back(fmt::format("--{} {} is no multiple of {}: SGLang cannot serve such a window",
                                name, tokens, kServedPageTokens));
  }
  if (options.fit.composition != Composition::kHadamard) return notes;
  const CalibrateOptions defaults;
  const std::pair<const char*, bool> targets[] = {
      {"k", options.key_target && options.key_target != defaults.key_target},
      {"v", options.value_target && options.value_target != defaults.value_target}};
  for (const auto& [side, given] : targets) {
    if (!given) continue;
    notes.push_back(
        fmt::format("composition hadamard is data-free: --{}-target has no effect", side));
  }
  return notes;
}

std::string SummaryText(const CalibrateOptions& options, const std::map<int, LayerFits>& fits,
                        const Clips& clips, const Recommendation& recommendation) {
  uint64_t tokens = 0;
  for (const auto& [layer, fit] : fits) tokens = std::max(tokens, fit.tokens);
  std::string text = fmt::format(
      "{}: {}, {} tokens, keys {}, values {}, one rotation per {}\n", options.model_name,
      Counted(fits.size(), "layer"), tokens, Objective(options.key_target, options.fit.composition),
      Objective(options.value_target, options.fit.composition), GroupingName(options.grouping));
  AddTable(fits, clips, text);
  AddHadamardNote(fits, text);
  AddSingle(clips, text);
  text += fmt::format("orthogonality as served in bfloat16: {:.1e} at worst\n", WorstServed(fits));
  AddRecommendation(recommendation, text);
  for (const std::string& note : NotesOf(options)) text += fmt::format("note: {}\n", note);
  text += fmt::format("written: {}\n", options.out.string());
  return text;
}

}  // namespace oscar
