#include "oscar/verify/collector.h"

#include <cmath>
#include <utility>

namespace oscar {
namespace {

using Sums = std::map<std::string, std::map<size_t, MeanSum>>;

void AddTo(Sums& sums, const std::string& metric, size_t sequence, double value) {
  sums[metric][sequence].Add({value, 1});
}

MetricMap Means(const Sums& sums) {
  MetricMap metrics;
  for (const auto& [name, sequences] : sums) {
    std::vector<double> samples;
    for (const auto& [sequence, sum] : sequences) samples.push_back(sum.Mean());
    metrics[name] = MetricValue::Of(std::move(samples));
  }
  return metrics;
}

// NaN counts as worst.
void TakeWorst(Summary& worst, double value) {
  if (worst.n == 0 || std::isnan(value) || value > worst.mean) worst.mean = value;
  ++worst.n;
}

}  // namespace

Collector::Collector(std::string name, std::string label, bool control) {
  result_.name = std::move(name);
  result_.label = std::move(label);
  result_.control = control;
}

void Collector::Add(int layer, size_t sequence, const std::string& metric, double value) {
  layers_[layer][metric].push_back(value);
  AddTo(overall_, metric, sequence, value);
}

void Collector::Add(int layer, size_t sequence, const Measurement& m) {
  Add(layer, sequence, "key_error", m.key.total.Relative());
  Add(layer, sequence, "value_error", m.value.total.Relative());
  Add(layer, sequence, "logit_error", m.attention.logit_error.Relative());
  Add(layer, sequence, "attention_kl", m.attention.attention_kl.Mean());
  Add(layer, sequence, "output_error", m.attention.output_error.Relative());
  if (m.projected) {
    Add(layer, sequence, "projected_output_error", m.attention.projected_output_error.Relative());
  }
  for (size_t r = 0; r < kRegions; ++r) {
    AddTo(regions_[r], "attention_kl", sequence, m.attention.region_kl[r].Mean());
    AddTo(regions_[r], "logit_error", sequence, m.attention.region_logit_error[r].Relative());
    AddTo(regions_[r], "mass", sequence, m.attention.region_mass[r].Mean());
  }
}

void Collector::AddWorst(int layer, const std::string& metric, double value) {
  TakeWorst(worst_[metric], value);
  TakeWorst(layer_worst_[layer][metric], value);
}

SchemeResult Collector::Finish(double bits_per_element) {
  result_.bits_per_element = bits_per_element;
  result_.metrics = Means(overall_);
  for (const auto& [name, worst] : worst_) result_.metrics[name] = MetricValue::Of(worst);
  for (size_t r = 0; r < kRegions; ++r) result_.regions[r] = Means(regions_[r]);
  for (auto& [layer, samples] : layers_) {
    LayerMetrics metrics{layer, {}};
    for (auto& [name, values] : samples) metrics.metrics[name] = MetricValue::Of(values);
    for (const auto& [name, worst] : layer_worst_[layer]) {
      metrics.metrics[name] = MetricValue::Of(worst);
    }
    result_.layers.push_back(std::move(metrics));
  }
  return std::move(result_);
}

}  // namespace oscar
