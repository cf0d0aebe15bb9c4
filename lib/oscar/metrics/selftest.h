// Checks of the metrics themselves: a known error goes in, the answer known by analysis must come
// out (`oscar-verify --selftest`). A metric that cannot report an error would pass everything.
#pragma once

#include <string>
#include <vector>

#include "oscar/core/value.h"

namespace oscar {

struct SelfTestResult {
  std::string metric;     // name of the metric as in reports
  std::string injection;  // what was done to the cache
  double expected = 0;
  double found = 0;
  double tolerance = 0;  // absolute
  bool passed() const;   // |found - expected| <= tolerance, false for NaN
};

// At least one injection for each metric, in a fixed order and with fixed seeds.
std::vector<SelfTestResult> RunMetricSelfTests();

// [{metric, injection, expected, found, tolerance, passed}].
Value ToValue(const std::vector<SelfTestResult>& results);

}  // namespace oscar
