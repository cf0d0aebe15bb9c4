// How many positions of a context fall into the exact windows and how many are quantised.
#pragma once

#include <cstdint>

#include "oscar/core/layer.h"

namespace oscar {

// Positions of a context of some length, seen from its last token.
struct RegionSizes {
  int64_t sink = 0;    // first tokens, exact
  int64_t middle = 0;  // quantised
  int64_t recent = 0;  // newest tokens, the last one included, exact
  friend bool operator==(const RegionSizes&, const RegionSizes&) = default;
};

// sink = min(S, length), recent = min(R, length - sink), middle the rest.
RegionSizes CountRegions(int64_t length, const Windows& windows);

// Windows of an engine that shares the sink by whole pages: an incomplete last page of the sink is
// quantised, so 64 sink tokens on pages of 128 protect nothing. The recent window is per request
// and keeps its size. page_tokens >= 1.
Windows FloorSinkToPages(const Windows& windows, int64_t page_tokens);

}  // namespace oscar
