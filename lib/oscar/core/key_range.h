// Runs of keys of a sequence.
#pragma once

#include <algorithm>
#include <cstdint>

namespace oscar {

// Keys [begin, end); empty when end <= begin.
struct KeyRange {
  int64_t begin = 0, end = 0;
  bool empty() const { return begin >= end; }
  int64_t size() const { return empty() ? 0 : end - begin; }
};

inline KeyRange Intersect(const KeyRange& a, const KeyRange& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// Keys that a query sees: itself and those before it, the last `window` of them when window > 0.
inline KeyRange VisibleKeys(int64_t query, int64_t window) {
  return {window > 0 ? std::max<int64_t>(0, query - window + 1) : 0, query + 1};
}

}  // namespace oscar
