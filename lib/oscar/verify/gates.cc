#include "oscar/verify/gates.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/verify/default_gates.h"

namespace oscar {
namespace {

constexpr std::array kComparisons = {"<=", "<", ">=", ">", "==", "finite"};
constexpr std::array kMetrics = {
    "key_error",        "value_error",         "logit_error",
    "attention_kl",     "output_error",        "projected_output_error",
    "hidden_error",     "next_token_kl",       "top1_agreement",
    "perplexity_ratio", "lse_error",           "kernel_code_errors",
    "kernel_row_error", "kernel_output_error", "kernel_lse_error"};
constexpr std::array kRegionMetrics = {"attention_kl", "logit_error", "mass"};

[[noreturn]] void Refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorCode::kFormat, fmt::format("{}: {}", where, what),
              "docs/formats/gates.md describes the file");
}

std::string TextOr(const Value& gate, const char* key, const std::string& fallback,
                   const std::string& where) {
  const Value* found = gate.Find(key);
  if (found == nullptr) return fallback;
  if (!found->is_string()) Refuse(where, fmt::format("{} is no text", key));
  return found->AsString();
}

std::string RequiredText(const Value& gate, const char* key, const std::string& where) {
  const std::string text = TextOr(gate, key, "", where);
  if (text.empty()) Refuse(where, fmt::format("no {}", key));
  return text;
}

// A misspelt metric would never be measured, and a gate that is not required would vanish.
void CheckMetric(const Gate& gate, const std::string& where) {
  if (gate.metric == "*") return;
  const std::span<const char* const> known =
      gate.region.empty() ? std::span<const char* const>(kMetrics) : kRegionMetrics;
  if (std::ranges::find(known, gate.metric) != known.end()) return;
  Refuse(where, fmt::format("metric '{}'{}: expected one of {}", gate.metric,
                            gate.region.empty() ? "" : " of a region", fmt::join(known, ", ")));
}

Gate ParseGate(const Value& value, const std::string& where) {
  static const std::set<std::string> kKeys = {"name",       "scheme", "metric",      "region",
                                              "comparison", "bound",  "relative_to", "required"};
  if (!value.is_object()) Refuse(where, "is no object");
  for (const auto& [key, content] : value.AsObject()) {
    if (!kKeys.contains(key)) Refuse(where, fmt::format("unknown key '{}'", key));
  }
  Gate gate;
  gate.name = RequiredText(value, "name", where);
  gate.scheme = RequiredText(value, "scheme", where);
  gate.metric = RequiredText(value, "metric", where);
  gate.region = TextOr(value, "region", "", where);
  gate.comparison = RequiredText(value, "comparison", where);
  gate.relative_to = TextOr(value, "relative_to", "", where);
  if (!gate.region.empty() && gate.region != "sink" && gate.region != "middle" &&
      gate.region != "recent") {
    Refuse(where, fmt::format("region '{}': expected sink, middle or recent", gate.region));
  }
  CheckMetric(gate, where);
  if (std::ranges::find(kComparisons, gate.comparison) == kComparisons.end()) {
    Refuse(where,
           fmt::format("comparison '{}': expected <=, <, >=, >, == or finite", gate.comparison));
  }
  const Value* bound = value.Find("bound");
  if (gate.comparison != "finite") {
    if (bound == nullptr || !bound->is_number()) Refuse(where, "no number as bound");
    gate.bound = bound->AsDouble();
    if (gate.metric == "*") Refuse(where, "only the comparison 'finite' takes every metric");
  } else if (bound != nullptr || !gate.relative_to.empty()) {
    Refuse(where, "the comparison 'finite' takes neither bound nor relative_to");
  }
  if (const Value* required = value.Find("required")) {
    if (!required->is_bool()) Refuse(where, "required is neither true nor false");
    gate.required = required->AsBool();
  }
  return gate;
}

bool Matches(const Gate& gate, const SchemeResult& scheme) {
  if (gate.scheme == scheme.name) return true;
  if (scheme.control) return false;
  return gate.scheme == "*" || scheme.name.starts_with(gate.scheme + ":");
}

const SchemeResult* FindScheme(std::span<const SchemeResult> schemes, const std::string& name) {
  const auto found = std::ranges::find(schemes, name, &SchemeResult::name);
  return found == schemes.end() ? nullptr : &*found;
}

const MetricMap& MetricsOf(const SchemeResult& scheme, const std::string& region) {
  for (size_t r = 0; r < kRegions; ++r) {
    if (region == RegionName(r)) return scheme.regions[r];
  }
  return scheme.metrics;
}

bool Holds(double value, const std::string& comparison, double bound) {
  if (comparison == "<=") return value <= bound;
  if (comparison == "<") return value < bound;
  if (comparison == ">=") return value >= bound;
  if (comparison == ">") return value > bound;
  return value == bound;
}

std::string WithError(const Summary& summary) {
  if (!summary.se.has_value()) return fmt::format("{:.4g}", summary.mean);
  return fmt::format("{:.4g} +- {:.2g}", summary.mean, summary.se.value());
}

// Ratio of two metrics, pair by pair where both know their samples.
Summary RatioOf(const MetricValue& a, const MetricValue& b) {
  if (!a.samples.empty() && a.samples.size() == b.samples.size()) {
    return SummarizeRatio(a.samples, b.samples);
  }
  Summary ratio;
  ratio.n = std::min(a.summary.n, b.summary.n);
  ratio.mean = b.summary.mean != 0   ? a.summary.mean / b.summary.mean
               : a.summary.mean == 0 ? 1
                                     : std::numeric_limits<double>::infinity();
  return ratio;
}

// First metric of the gate in a map that is not finite, or nothing; counts those that are there.
std::string NotFinite(const Gate& gate, const MetricMap& metrics, int64_t& seen) {
  for (const auto& [name, metric] : metrics) {
    if (gate.metric != "*" && gate.metric != name) continue;
    ++seen;
    if (!std::isfinite(metric.summary.mean)) return name;
  }
  return "";
}

// One result for all schemes of the gate; the first fault is its reason. `missing` says when there
// was nothing to look at.
GateResult EvaluateFiniteGate(const Gate& gate, std::span<const SchemeResult> schemes,
                              std::string& missing) {
  GateResult result{gate, gate.name, gate.scheme, 0, false, true, ""};
  int64_t seen = 0;
  for (const SchemeResult& scheme : schemes) {
    if (!Matches(gate, scheme)) continue;
    std::string fault = NotFinite(gate, MetricsOf(scheme, gate.region), seen);
    for (size_t i = 0; i < scheme.layers.size() && gate.region.empty(); ++i) {
      const std::string metric = NotFinite(gate, scheme.layers[i].metrics, seen);
      if (metric.empty()) continue;
      fault = fmt::format("{} in layer {}", metric, scheme.layers[i].layer);
      break;
    }
    if (fault.empty()) continue;
    result.passed = false;
    result.scheme = scheme.name;
    result.reason = fmt::format("{} of {} is not finite", fault, scheme.name);
    return result;
  }
  if (seen == 0) missing = fmt::format("{} of {} was not measured", gate.metric, gate.scheme);
  result.passed = seen > 0;
  result.reason = "every number is finite";
  return result;
}

// Empty reason in `missing`: the gate was evaluated.
GateResult EvaluateOne(const Gate& gate, const SchemeResult& scheme,
                       std::span<const SchemeResult> schemes, std::string& missing) {
  GateResult result{gate, gate.name, scheme.name, 0, false, false, ""};
  const MetricMap& metrics = MetricsOf(scheme, gate.region);
  const auto metric = metrics.find(gate.metric);
  if (metric == metrics.end()) {
    missing = fmt::format("{} of {} was not measured", gate.metric, scheme.name);
    return result;
  }
  Summary value = metric->second.summary;
  result.reason = WithError(value);
  if (!gate.relative_to.empty()) {
    const std::string other_name =
        gate.relative_to == "noise" ? scheme.name + "+noise" : gate.relative_to;
    const SchemeResult* const other = FindScheme(schemes, other_name);
    const MetricMap* const other_metrics =
        other == nullptr ? nullptr : &MetricsOf(*other, gate.region);
    if (other_metrics == nullptr || !other_metrics->contains(gate.metric)) {
      missing = fmt::format("{} of {} was not measured", gate.metric, other_name);
      return result;
    }
    const MetricValue& reference = other_metrics->at(gate.metric);
    result.reason = fmt::format("{} against {}", result.reason, WithError(reference.summary));
    value = RatioOf(metric->second, reference);
    result.reason = fmt::format("ratio {}: {}", WithError(value), result.reason);
  }
  result.value = value.mean;
  result.has_value = true;
  // NaN satisfies no comparison.
  result.passed = Holds(value.mean, gate.comparison, gate.bound);
  return result;
}

}  // namespace

std::vector<Gate> ParseGates(std::string_view text, const std::string& where) {
  const Value file = Value::FromJson(text, where);
  const Value* schema = file.Find("schema");
  if (schema == nullptr || *schema != Value("oscar.gates/1")) {
    Refuse(where, fmt::format("expected schema oscar.gates/1, found {}",
                              schema == nullptr ? "none" : schema->ToJson()));
  }
  for (const auto& [key, content] : file.AsObject()) {
    if (key != "schema" && key != "gates") Refuse(where, fmt::format("unknown key '{}'", key));
  }
  const Value* list = file.Find("gates");
  if (list == nullptr || !list->is_array()) Refuse(where, "no list of gates");
  std::vector<Gate> gates;
  std::set<std::string> names;
  for (const Value& value : list->AsArray()) {
    gates.push_back(ParseGate(value, fmt::format("{}: gate {}", where, gates.size() + 1)));
    if (!names.insert(gates.back().name).second) {
      Refuse(where, fmt::format("two gates are named '{}'", gates.back().name));
    }
  }
  if (gates.empty()) Refuse(where, "no gate: any result would pass");
  return gates;
}

std::vector<Gate> ReadGates(const std::filesystem::path& path) {
  if (path.empty()) return ParseGates(kDefaultGates, "built-in gates");
  return ParseGates(ReadTextFile(path), path.string());
}

std::vector<Gate> ReadKernelGates(const std::filesystem::path& path) {
  std::vector<Gate> built_in = ParseGates(kKernelGates, "built-in gates of kernels");
  if (path.empty()) return built_in;
  std::vector<Gate> gates = ReadGates(path);
  std::ranges::copy_if(built_in, std::back_inserter(gates),
                       [](const Gate& gate) { return gate.metric.starts_with("kernel_"); });
  return gates;
}

std::vector<GateResult> EvaluateGates(std::span<const Gate> gates,
                                      std::span<const SchemeResult> schemes,
                                      std::vector<GateResult>& skipped) {
  std::vector<GateResult> results;
  for (const Gate& gate : gates) {
    const auto matches = [&](const SchemeResult& scheme) { return Matches(gate, scheme); };
    const auto count = std::ranges::count_if(schemes, matches);
    if (count == 0) {
      const std::string reason = fmt::format("scheme {} was not measured", gate.scheme);
      (gate.required ? results : skipped)
          .push_back({gate, gate.name, gate.scheme, 0, false, false, reason});
    }
    if (gate.comparison == "finite" && count > 0) {
      std::string missing;
      GateResult result = EvaluateFiniteGate(gate, schemes, missing);
      if (!missing.empty()) result.reason = missing;
      (missing.empty() || gate.required ? results : skipped).push_back(std::move(result));
      continue;
    }
    for (const SchemeResult& scheme : schemes) {
      if (!matches(scheme)) continue;
      std::string missing;
      GateResult result = EvaluateOne(gate, scheme, schemes, missing);
      if (!missing.empty()) result.reason = missing;
      if (count > 1) result.name += fmt::format(" [{}]", scheme.name);
      (missing.empty() || gate.required ? results : skipped).push_back(std::move(result));
    }
  }
  return results;
}

Value ToValue(const GateResult& result) {
  Value value = Value::Object{{"name", result.name},
                              {"scheme", result.scheme},
                              {"metric", result.gate.metric},
                              {"comparison", result.gate.comparison},
                              {"value", nullptr},
                              {"passed", result.passed},
                              {"reason", result.reason}};
  if (result.gate.comparison != "finite") value["bound"] = result.gate.bound;
  if (result.has_value) value["value"] = result.value;
  if (!result.gate.region.empty()) value["region"] = result.gate.region;
  if (!result.gate.relative_to.empty()) value["relative_to"] = result.gate.relative_to;
  return value;
}

Value SkippedValue(const GateResult& skipped) {
  Value value = Value::Object{{"name", skipped.name},
                              {"scheme", skipped.scheme},
                              {"metric", skipped.gate.metric},
                              {"reason", skipped.reason}};
  if (!skipped.gate.region.empty()) value["region"] = skipped.gate.region;
  return value;
}

}  // namespace oscar
