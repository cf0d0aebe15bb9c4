// Measured numbers of one scheme, and their form in the report (docs/formats/report.md).
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/value.h"
#include "oscar/metrics/attention.h"
#include "oscar/metrics/summary.h"

namespace oscar {

// A metric over sequences. `samples` holds one value per sequence where they are known: ratios of
// two schemes are then formed pair by pair.
struct MetricValue {
  Summary summary;
  std::vector<double> samples;

  static MetricValue Of(std::vector<double> samples);
  static MetricValue Of(const Summary& summary) { return {summary, {}}; }
};

// By name of the metric.
using MetricMap = std::map<std::string, MetricValue>;

struct LayerMetrics {
  int layer = 0;
  MetricMap metrics;
};

struct SchemeResult {
  std::string name, label;
  bool control = false;  // a matched-noise control
  double bits_per_element = 0;
  // Overall: each sequence counts with the mean over layers of its layers' values.
  MetricMap metrics;
  std::array<MetricMap, kRegions> regions;  // attention_kl, logit_error, mass; by Region
  std::vector<LayerMetrics> layers;
};

// "sink", "middle", "recent".
const char* RegionName(size_t region);

// {mean, se, n}; numbers that are not finite are null, with a `reason`.
Value ToValue(const MetricValue& metric);
Value ToValue(const SchemeResult& result);

}  // namespace oscar
