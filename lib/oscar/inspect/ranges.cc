#include "oscar/inspect/ranges.h"

#include <fmt/format.h>

namespace oscar {

std::string RangesOf(const std::vector<int64_t>& ascending) {
  std::string text;
  for (size_t begin = 0; begin < ascending.size();) {
    size_t end = begin + 1;
    while (end < ascending.size() && ascending[end] <= ascending[end - 1] + 1) ++end;
    const int64_t first = ascending[begin];
    const int64_t last = ascending[end - 1];
    text += fmt::format("{}{}", text.empty() ? "" : ", ", first);
    if (last > first) text += fmt::format("{}{}", last == first + 1 ? ", " : "-", last);
    begin = end;
  }
  return text;
}

}  // namespace oscar
