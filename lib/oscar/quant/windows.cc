#include "oscar/quant/windows.h"

#include <algorithm>

#include "oscar/core/error.h"

namespace oscar {

RegionSizes CountRegions(int64_t length, const Windows& windows) {
  OSCAR_CHECK(length >= 0 && windows.sink >= 0 && windows.recent >= 0);
  RegionSizes sizes;
  sizes.sink = std::min(windows.sink, length);
  sizes.recent = std::min(windows.recent, length - sizes.sink);
  sizes.middle = length - sizes.sink - sizes.recent;
  return sizes;
}

Windows FloorSinkToPages(const Windows& windows, int64_t page_tokens) {
  OSCAR_CHECK(page_tokens >= 1);
  return {windows.sink - windows.sink % page_tokens, windows.recent};
}

}  // namespace oscar
