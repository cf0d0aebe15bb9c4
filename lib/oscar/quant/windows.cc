#include "oscar/quant/windows.h"

#include <algorithm>
#include <string>

#include "oscar/core/error.h"

namespace oscar {

RegionSizes CountRegions(int64_t length, const Windows& windows, int64_t sliding_window) {
  OSCAR_CHECK(length >= 0 && windows.sink >= 0 && windows.recent >= 0 && sliding_window >= 0);
  RegionSizes sizes;
  sizes.sink = std::min(windows.sink, length);
  sizes.middle = std::max<int64_t>(0, windows.RecentBegin(length - 1) - windows.sink);
  sizes.recent = length - sizes.sink - sizes.middle;
  int64_t hidden = sliding_window == 0 ? 0 : std::max<int64_t>(0, length - sliding_window);
  for (int64_t* const size : {&sizes.sink, &sizes.middle, &sizes.recent}) {
    const int64_t cut = std::min(*size, hidden);
    *size -= cut;
    hidden -= cut;
  }
  return sizes;
}

bool SeesQuantisedKeys(const LayerShape& shape, const Windows& windows) {
  return shape.window == 0 || shape.window > windows.recent;
}

std::vector<int> LayersKeptExact(const std::map<int, LayerShape>& layers, const Windows& windows,
                                 int64_t longest_sequence) {
  std::vector<int> exact;
  for (const auto& [layer, shape] : layers) {
    if (!SeesQuantisedKeys(shape, windows)) exact.push_back(layer);
  }
  if (exact.empty() || exact.size() < layers.size()) return exact;
  throw Error(ErrorCode::kData,
              "no position is quantised: the sliding window of " +
                  std::to_string(layers.at(exact.front()).window) + " tokens of layer " +
                  std::to_string(exact.front()) + " lies within the " +
                  std::to_string(windows.recent) +
                  " recent tokens, and so does that of every layer" + " (sink " +
                  std::to_string(windows.sink) + ", longest sequence " +
                  std::to_string(longest_sequence) + " tokens)",
              "use a smaller --recent");
}

std::string WindowsText(const Windows& windows) {
  std::string text =
      "sink " + std::to_string(windows.sink) + " and recent " + std::to_string(windows.recent);
  if (windows.flush > 1) text += " with flush " + std::to_string(windows.flush);
  return text;
}

Windows FloorSinkToPages(const Windows& windows, int64_t page_tokens) {
  OSCAR_CHECK(page_tokens >= 1);
  return {windows.sink - windows.sink % page_tokens, windows.recent, windows.flush};
}

}  // namespace oscar
