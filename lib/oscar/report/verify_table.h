// The tables that the text and the HTML report share.
#pragma once

#include <string>
#include <vector>

#include "oscar/core/value.h"

namespace oscar {

struct MetricColumn {
  std::string key;    // name in the record
  std::string title;  // column title
};

// Metrics that at least one scheme has, in reading order.
std::vector<MetricColumn> PresentMetrics(const Value& record);

using Cells = std::vector<std::vector<std::string>>;

// First row is the header: scheme, bits, each metric as "mean +- se".
Cells SchemeCells(const Value& record);
// Header: scheme, then attention KL, logit error and mass of sink, middle, recent.
Cells RegionCells(const Value& record);
// Header: layer, then one column per scheme that is no control, with one metric's means.
Cells LayerCells(const Value& record, const std::string& metric);
// Header: gate, value, bound, result.
Cells GateCells(const Value& record);

// Times of a run on kernels, from the volatile part; the header alone when there are none. Header:
// scheme, write us, decode us, bytes, GB/s, BF16 us, speed-up, byte ratio.
Cells KernelCells(const Value& record);

// "pass"/"fail" of the record; throws Error(kFormat) when it is another schema.
std::string CheckedVerdict(const Value& record);

}  // namespace oscar
