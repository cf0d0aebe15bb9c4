#include "oscar/verify/scheme_result.h"

#include <cmath>

#include "oscar/core/error.h"

namespace oscar {
namespace {

Value ToValue(const MetricMap& metrics) {
  Value::Object object;
  for (const auto& [name, metric] : metrics) object[name] = ToValue(metric);
  return object;
}

std::string WhyNotFinite(double x) {
  if (std::isnan(x)) return "not a number: some reconstructed row is not finite";
  return "infinite: an error where the exact quantity is zero, or beyond float64";
}

}  // namespace

MetricValue MetricValue::Of(std::vector<double> samples) {
  const Summary summary = Summarize(samples);
  return {summary, std::move(samples)};
}

const char* RegionName(size_t region) {
  constexpr std::array<const char*, kRegions> kNames = {"sink", "middle", "recent"};
  return kNames.at(region);
}

Value ToValue(const MetricValue& metric) {
  const Summary& summary = metric.summary;
  Value value = Value::Object{{"mean", summary.mean}, {"n", summary.n}, {"se", nullptr}};
  if (summary.se.has_value()) value["se"] = summary.se.value();
  // Non-finite numbers become null when the record is written; say why here.
  if (!std::isfinite(summary.mean)) value["reason"] = WhyNotFinite(summary.mean);
  return value;
}

Value ToValue(const SchemeResult& result) {
  Value value = Value::Object{{"name", result.name},
                              {"label", result.label},
                              {"control", result.control},
                              {"bits_per_element", result.bits_per_element},
                              {"metrics", ToValue(result.metrics)}};
  for (size_t r = 0; r < kRegions; ++r) {
    if (!result.regions[r].empty()) value["regions"][RegionName(r)] = ToValue(result.regions[r]);
  }
  Value::Array layers;
  for (const LayerMetrics& layer : result.layers) {
    layers.push_back(Value::Object{{"layer", layer.layer}, {"metrics", ToValue(layer.metrics)}});
  }
  value["layers"] = std::move(layers);
  return value;
}

}  // namespace oscar
