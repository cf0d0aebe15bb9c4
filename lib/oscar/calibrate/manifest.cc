#include "oscar/calibrate/manifest.h"

#include <algorithm>
#include <set>
#include <string>

#include "oscar/core/hadamard.h"
#include "oscar/core/version.h"

namespace oscar {
namespace {

Value ListOf(const std::vector<double>& values) {
  return Value::Array(values.begin(), values.end());
}

// The value of `key` in the first trace's manifest; null when unknown there.
Value FromTrace(const TraceSet& traces, const char* key) {
  const Value* value = traces.traces().front().header().manifest.Find(key);
  if (value == nullptr || (value->is_string() && value->AsString().empty())) return {};
  return *value;
}

// The common value of all layers, or null when layers differ.
Value Common(const std::map<int, LayerFits>& fits, int64_t LayerShape::*field) {
  const int64_t first = fits.begin()->second.shape.*field;
  for (const auto& [layer, fit] : fits) {
    if (fit.shape.*field != first) return {};
  }
  return first;
}

Value Model(const CalibrateOptions& options, const TraceSet& traces,
            const std::map<int, LayerFits>& fits) {
  return Value::Object{{"name", options.model_name},
                       {"id", FromTrace(traces, "model_id")},
                       {"config_hash", FromTrace(traces, "config_hash")},
                       {"weights_fingerprint", FromTrace(traces, "weights_fingerprint")},
                       {"capture_point", FromTrace(traces, "capture_point")},
                       {"layers", static_cast<int64_t>(fits.size())},
                       {"q_heads", Common(fits, &LayerShape::q_heads)},
                       {"kv_heads", Common(fits, &LayerShape::kv_heads)},
                       {"k_dim", Common(fits, &LayerShape::k_dim)},
                       {"v_dim", Common(fits, &LayerShape::v_dim)}};
}

// Kinds of Hadamard matrices in use: one name, or one for each dim.
Value HadamardKinds(const std::map<int, LayerFits>& fits) {
  std::map<std::string, Value> by_dim;
  std::set<std::string> kinds;
  for (const auto& [layer, fit] : fits) {
    for (const int64_t dim : {fit.shape.k_dim, fit.shape.v_dim}) {
      kinds.insert(HadamardKind(dim));
      by_dim[std::to_string(dim)] = HadamardKind(dim);
    }
  }
  if (kinds.size() == 1) return *kinds.begin();
  return Value::Object(by_dim.begin(), by_dim.end());
}

Value Calibration(const TraceSet& traces, const std::vector<std::string>& trace_hashes,
                  const std::map<int, LayerFits>& fits) {
  uint64_t tokens = 0;
  for (const auto& [layer, fit] : fits) tokens = std::max(tokens, fit.tokens);
  Value::Array sequences;
  std::set<uint64_t> ngrams;
  bool ids_known = true;
  for (const TraceReader& trace : traces.traces()) {
    for (const TraceSequence& sequence : trace.header().sequences) {
      ids_known = ids_known && !sequence.sha256.empty();
      if (!sequence.sha256.empty()) sequences.emplace_back(sequence.sha256);
    }
    ngrams.insert(trace.header().ngram_hashes.begin(), trace.header().ngram_hashes.end());
  }
  return Value::Object{{"tokens", tokens},
                       {"sequences", sequences},
                       {"ngrams", Value::Array(ngrams.begin(), ngrams.end())},
                       {"token_ids_known", ids_known},
                       {"traces", Value::Array(trace_hashes.begin(), trace_hashes.end())}};
}

Value ClipSide(const SideClips& clips) {
  Value::Object table;
  for (const auto& [layer, ratio] : clips.ratios) table[std::to_string(layer)] = ratio;
  return table;
}

// One pair for all layers, and what it costs against a ratio per layer.
Value SingleOf(const Clips& clips) {
  Value::Object single, losses;
  const std::pair<const char*, const SideClips*> sides[] = {{"key", &clips.key},
                                                            {"value", &clips.value}};
  for (const auto& [name, side] : sides) {
    single[name] = side->single ? side->single->ratio : side->ratios.begin()->second;
    if (!side->single) continue;
    losses[name] =
        Value::Object{{"single", side->single->loss}, {"per_layer", side->single->per_layer_loss}};
  }
  if (!losses.empty()) single["losses"] = losses;
  return single;
}

Value CurvesOf(const SideClips& clips) {
  Value::Object curves;
  for (const auto& [layer, curve] : clips.curves) {
    curves[std::to_string(layer)] = ListOf(curve.losses);
  }
  return curves;
}

Value ClipValue(const CalibrateOptions& options, const Clips& clips) {
  Value::Object clip{{"mode", ClipPolicyName(options.clip.policy)},
                     {"key", ClipSide(clips.key)},
                     {"value", ClipSide(clips.value)},
                     {"single", SingleOf(clips)}};
  if (options.clip.policy == ClipPolicy::kSearch) {
    clip["search"] = Value::Object{{"key_loss", "attention_kl"},
                                   {"value_loss", "output_error"},
                                   {"sequences", clips.sequences},
                                   {"queries", clips.queries}};
    if (!clips.exact_layers.empty()) {
      clip["search"]["left_out"] =
          Value::Array(clips.exact_layers.begin(), clips.exact_layers.end());
    }
    clip["curves"] = Value::Object{{"ratios", ListOf(clips.key.curves.begin()->second.ratios)},
                                   {"key", CurvesOf(clips.key)},
                                   {"value", CurvesOf(clips.value)}};
  }
  return clip;
}

Value RotationValue(const RotationFit& fit, bool data_free) {
  Value::Object value{{"orthogonality_stored", fit.orthogonality.as_stored},
                      {"orthogonality_served", fit.orthogonality.as_served}};
  if (data_free) return value;
  value["eigenvalues"] = ListOf(fit.eigen.values);
  value["residual"] = fit.eigen.residual;
  value["residual_units"] = fit.eigen.residual_units;
  value["orthogonality"] = fit.eigen.orthogonality;
  value["rank"] = fit.rank;
  value["target_sha256"] = fit.target_sha256;
  return value;
}

Value OptionalValue(const std::optional<double>& number) {
  return number ? Value(*number) : Value();
}

Value SideValue(const SideFits& fit, const SideClips& clips, int layer) {
  Value value;
  if (fit.grouping == Grouping::kLayer) {
    value = RotationValue(fit.rotations.front(), !fit.target);
  } else {
    Value::Array heads;
    for (const RotationFit& rotation : fit.rotations) {
      heads.push_back(RotationValue(rotation, false));
    }
    value["heads"] = heads;
  }
  if (fit.target) {
    value["predicted_loss"] = Value::Object{{"shared", fit.predicted.shared},
                                            {"per_head", fit.predicted.per_head},
                                            {"ratio", OptionalValue(fit.predicted.Ratio())},
                                            {"signal_known", fit.predicted.signal_known}};
  }
  const auto measured = MeasuredOf(fit, clips, layer);
  if (measured) {
    value["measured_loss"] =
        Value::Object{{"shared", measured->shared}, {"per_head", measured->per_head}};
  }
  return value;
}

Value LayersValue(const std::map<int, LayerFits>& fits, const Clips& clips) {
  Value::Object layers;
  for (const auto& [layer, fit] : fits) {
    layers[std::to_string(layer)] =
        Value::Object{{"tokens", fit.tokens},
                      {"q_heads", fit.shape.q_heads},
                      {"kv_heads", fit.shape.kv_heads},
                      {"k_dim", fit.shape.k_dim},
                      {"v_dim", fit.shape.v_dim},
                      {"key", SideValue(fit.key, clips.key, layer)},
                      {"value", SideValue(fit.value, clips.value, layer)}};
  }
  return layers;
}

Value RecommendationValue(const Recommendation& recommendation) {
  const auto side = [](const SideRatios& ratios) {
    return Value(Value::Object{{"predicted_ratio", OptionalValue(ratios.predicted)},
                               {"measured_ratio", OptionalValue(ratios.measured)}});
  };
  return Value::Object{{"grouping", GroupingName(recommendation.grouping)},
                       {"key", side(recommendation.key)},
                       {"value", side(recommendation.value)},
                       {"disputed", recommendation.disputed},
                       {"reason", recommendation.reason}};
}

Value WindowsValue(const Windows& windows) {
  Value value = Value::Object{{"sink", windows.sink}, {"recent", windows.recent}};
  if (windows.flush > 1) value["flush"] = windows.flush;
  return value;
}

Value TargetValue(const std::optional<Target>& target, Composition composition) {
  if (!target || composition == Composition::kHadamard) return "none";
  return TargetName(*target);
}

}  // namespace

Value MakeManifest(const CalibrateOptions& options, const TraceSet& traces,
                   const std::vector<std::string>& trace_hashes,
                   const std::map<int, LayerFits>& fits, const Clips& clips,
                   const Recommendation& recommendation) {
  const Composition composition = options.fit.composition;
  return Value::Object{
      {"schema", "oscar.zoo/1"},
      {"tool", "oscar-calibrate " + std::string(Version())},
      {"git_revision", GitRevision()},
      {"model", Model(options, traces, fits)},
      {"targets", Value::Object{{"key", TargetValue(options.key_target, composition)},
                                {"value", TargetValue(options.value_target, composition)}}},
      {"composition", CompositionName(composition)},
      {"grouping", GroupingName(options.grouping)},
      {"signs", SignRuleName(options.fit.signs)},
      {"eigenvalue_order", "ascending"},
      {"hadamard_kind", HadamardKinds(fits)},
      {"windows", WindowsValue(options.windows)},
      {"group_size", options.group_size},
      {"scale_dtype", ScaleTypeName(options.scale_type)},
      {"min_tokens_per_dim", options.fit.gates.min_tokens_per_dim},
      {"clip", ClipValue(options, clips)},
      {"calibration", Calibration(traces, trace_hashes, fits)},
      {"layers", LayersValue(fits, clips)},
      {"recommendation", RecommendationValue(recommendation)}};
}

}  // namespace oscar
