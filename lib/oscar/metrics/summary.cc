#include "oscar/metrics/summary.h"

#include <cmath>
#include <limits>
#include <vector>

#include "oscar/core/error.h"

namespace oscar {

Summary Summarize(std::span<const double> samples) {
  Summary summary;
  summary.n = static_cast<int64_t>(samples.size());
  if (samples.empty()) return summary;
  const auto n = static_cast<double>(samples.size());
  double sum = 0;
  for (const double x : samples) sum += x;
  summary.mean = sum / n;
  if (samples.size() < 2) return summary;
  double squares = 0;
  for (const double x : samples) squares += (x - summary.mean) * (x - summary.mean);
  summary.se = std::sqrt(squares / (n - 1) / n);
  return summary;
}

Summary SummarizeRatio(std::span<const double> a, std::span<const double> b) {
  OSCAR_CHECK(a.size() == b.size());
  const Summary top = Summarize(a);
  const Summary bottom = Summarize(b);
  Summary summary;
  summary.n = top.n;
  if (bottom.mean == 0) {
    summary.mean = top.mean == 0 ? 1 : std::numeric_limits<double>::infinity();
    return summary;
  }
  summary.mean = top.mean / bottom.mean;
  if (a.size() < 2) return summary;
  std::vector<double> residuals;
  for (size_t i = 0; i < a.size(); ++i) residuals.push_back(a[i] - summary.mean * b[i]);
  summary.se = Summarize(residuals).se.value() / std::abs(bottom.mean);
  return summary;
}

}  // namespace oscar
