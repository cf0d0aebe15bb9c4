// How many positions of a context fall into the exact windows and how many are quantised.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "oscar/core/layer.h"

namespace oscar {

// Positions of a context of some length that its last token sees.
struct RegionSizes {
  int64_t sink = 0;    // first tokens, exact
  int64_t middle = 0;  // quantised
  int64_t recent = 0;  // newest tokens, the last one included, exact
  friend bool operator==(const RegionSizes&, const RegionSizes&) = default;
};

// sink = min(S, length), middle = the quantised ones (length - sink - R when that is positive and
// tokens leave the window one by one), recent the rest; all three cut down to the newest
// `sliding_window` positions of a layer that has such a window (0: none).
RegionSizes CountRegions(int64_t length, const Windows& windows, int64_t sliding_window = 0);

// Whether a query far enough into a sequence sees a quantised key. False where a layer's sliding
// window lies within the recent tokens: such a layer's cache is never quantised.
bool SeesQuantisedKeys(const LayerShape& shape, const Windows& windows);

// The layers that see no quantised key: what is measured there could only look harmless. Throws
// Error(kData) naming sink, recent, the sliding window of one layer and the longest sequence when
// that is every layer.
std::vector<int> LayersKeptExact(const std::map<int, LayerShape>& layers, const Windows& windows,
                                 int64_t longest_sequence);

// "sink 64 and recent 256", and the flush where it is more than 1: for messages.
std::string WindowsText(const Windows& windows);

// Windows of an engine that shares the sink by whole pages: an incomplete last page of the sink is
// quantised, so 64 sink tokens on pages of 128 protect nothing. The recent window is per request
// and keeps its size. page_tokens >= 1.
Windows FloorSinkToPages(const Windows& windows, int64_t page_tokens);

}  // namespace oscar
