// Pooled errors, the choice of queries, and errors of the cached rows themselves.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "oscar/core/error.h"
#include "oscar/core/random.h"
#include "oscar/metrics/attention.h"
#include "oscar/metrics/attention_parts.h"
#include "oscar/quant/windows.h"

namespace oscar {

double ErrorRatio::Relative() const {
  if (denominator > 0) return std::sqrt(numerator / denominator);
  if (numerator == 0 && denominator == 0) return 0;
  return std::isnan(numerator) || std::isnan(denominator) ? std::numeric_limits<double>::quiet_NaN()
                                                          : std::numeric_limits<double>::infinity();
}

void AttentionErrors::Add(const AttentionErrors& other) {
  attention_kl.Add(other.attention_kl);
  logit_error.Add(other.logit_error);
  output_error.Add(other.output_error);
  projected_output_error.Add(other.projected_output_error);
  for (size_t r = 0; r < kRegions; ++r) {
    region_logit_error[r].Add(other.region_logit_error[r]);
    region_mass[r].Add(other.region_mass[r]);
    region_kl[r].Add(other.region_kl[r]);
  }
}

void RowErrors::Add(const RowErrors& other) {
  total.Add(other.total);
  for (size_t r = 0; r < kRegions; ++r) region[r].Add(other.region[r]);
}

std::vector<int64_t> ChooseQueries(int64_t length, int64_t count, const Windows& windows,
                                   bool use_windows, int64_t sliding_window) {
  const LayerShape shape{.window = sliding_window};
  const int64_t first = use_windows ? windows.ShortestUseful() - 1 : 0;
  if (length <= first) {
    throw Error(ErrorCode::kData,
                "no position is quantised: " + WindowsText(windows) +
                    " cover the longest sequence of " + std::to_string(length) + " tokens",
                "use longer sequences or smaller windows");
  }
  if (use_windows && !SeesQuantisedKeys(shape, windows)) {
    throw Error(ErrorCode::kData,
                "no position is quantised: the sliding window of " +
                    std::to_string(sliding_window) + " tokens lies within the " +
                    std::to_string(windows.recent) + " recent tokens (sink " +
                    std::to_string(windows.sink) + ", longest sequence " + std::to_string(length) +
                    " tokens)",
                "use a smaller recent window");
  }
  std::vector<int64_t> eligible;
  for (int64_t i = first; i < length; ++i) {
    if (!use_windows || !MiddleKeys(shape, windows, i).empty()) eligible.push_back(i);
  }
  const auto available = static_cast<int64_t>(eligible.size());
  const int64_t chosen = std::min(std::max<int64_t>(count, 1), available);
  // Equal steps could meet the flushes always at the same distance.
  Random random(1);
  std::vector<int64_t> queries;
  for (int64_t j = 1; j <= chosen; ++j) {
    const int64_t begin = (j - 1) * available / chosen, end = j * available / chosen;
    int64_t index = end - 1;
    if (use_windows && windows.flush > 1 && j < chosen) {
      index = begin + static_cast<int64_t>(random.Below(static_cast<uint64_t>(end - begin)));
    }
    queries.push_back(eligible[static_cast<size_t>(index)]);
  }
  return queries;
}

RowErrors CompareRows(HeadRows<const float> x, HeadRows<const float> x_hat,
                      HeadRows<const float> window_rows, const Windows& windows, bool use_windows,
                      int64_t sliding_window) {
  OSCAR_CHECK(x_hat.size() == x.size());
  OSCAR_CHECK(window_rows.data == nullptr || window_rows.size() == x.size());
  RowErrors errors;
  const int64_t last = x.tokens - 1;
  for (int64_t token = VisibleKeys({.window = sliding_window}, last).begin; token < x.tokens;
       ++token) {
    const bool middle = windows.Quantised(last, token);
    const Region region = middle                 ? Region::kMiddle
                          : token < windows.sink ? Region::kSink
                                                 : Region::kRecent;
    const float* const row = x.At(token, 0);
    const float* stored = row;
    if (!use_windows || middle) {
      stored = x_hat.At(token, 0);
    } else if (window_rows.data != nullptr) {
      stored = window_rows.At(token, 0);
    }
    ErrorRatio ratio;
    for (int64_t d = 0; d < x.heads * x.dim; ++d) {
      const double exact = static_cast<double>(row[d]);
      const double difference = static_cast<double>(stored[d]) - exact;
      ratio.numerator += difference * difference;
      ratio.denominator += exact * exact;
    }
    errors.total.Add(ratio);
    errors.region[static_cast<size_t>(region)].Add(ratio);
  }
  return errors;
}

}  // namespace oscar
