// Pieces shared by the files of this module: key ranges, blocks of queries, weighted sums of
// values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "oscar/core/key_range.h"
#include "oscar/core/layer.h"
#include "oscar/quant/matmul.h"

namespace oscar {

// Keys that a query sees: causal, and within the layer's sliding window.
inline KeyRange VisibleKeys(const LayerShape& shape, int64_t query) {
  return VisibleKeys(query, shape.window);
}

// The middle region of a query within its visible keys. An empty middle still has a place: it
// divides the sink from the recent keys.
inline KeyRange MiddleKeys(const LayerShape& shape, const Windows& windows, int64_t query) {
  const KeyRange visible = VisibleKeys(shape, query);
  const int64_t begin = std::clamp(windows.sink, visible.begin, visible.end);
  return {begin, std::clamp(windows.RecentBegin(query), begin, visible.end)};
}

// Consecutive chosen queries of one KV head, with all query heads of its group as rows.
struct QueryBlock {
  int64_t head = 0;
  int64_t first = 0, last = 0;  // query indices [first, last)
  KeyRange keys;                // visible to at least one of them
};

int64_t QueryBlockCount(const LayerShape& shape, std::span<const int64_t> queries);
QueryBlock QueryBlockAt(const LayerShape& shape, std::span<const int64_t> queries, int64_t task);

// Weights of the rows of a block: row r's weight of key j is data[r * keys.size() + j - keys.begin]
// and 0 outside the row's own range.
struct BlockWeights {
  KeyRange keys;
  std::vector<float> data;
  std::vector<int64_t> row_end;  // [rows], ascending: no weight of row r at or beyond this key
};

// out [rows, dim] += weights x values, values [T, dim] given by key. Products are added in float32
// over at most 256 keys, then in float64: an entry's error is below 257 2^-24 sum |w v|.
void AddWeightedValues(const BlockWeights& weights, Strided<const float> values, int64_t dim,
                       std::vector<double>& out);

}  // namespace oscar
