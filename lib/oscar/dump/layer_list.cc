#include "oscar/dump/layer_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string>

#include "oscar/core/error.h"

namespace oscar {
namespace {

[[noreturn]] void Refuse(std::string_view list) {
  throw Error(ErrorCode::kUsage,
              fmt::format("--layers {}: expected numbers and ranges such as 0-3,7", list));
}

int ParseNumber(std::string_view text, std::string_view list) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool plain = !text.empty() && text.front() != '-' && (text.size() == 1 || text[0] != '0');
  if (!plain || error != std::errc() || end != text.data() + text.size()) Refuse(list);
  return value;
}

}  // namespace

std::vector<int> SelectLayers(std::string_view list, const std::vector<int>& available) {
  if (list.empty()) return available;
  std::set<int> wanted;
  size_t begin = 0;
  while (begin <= list.size()) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string_view item = list.substr(begin, end - begin);
    const size_t dash = item.find('-');
    const int first = ParseNumber(item.substr(0, dash), list);
    const int last =
        dash == std::string_view::npos ? first : ParseNumber(item.substr(dash + 1), list);
    if (last < first) Refuse(list);
    for (int layer = first; layer <= last; ++layer) {
      if (!std::binary_search(available.begin(), available.end(), layer)) {
        throw Error(
            ErrorCode::kUsage,
            fmt::format("--layers {}: there is no layer {} (layers {} to {}, {} in all)", list,
                        layer, available.front(), available.back(), available.size()));
      }
      wanted.insert(layer);
    }
    begin = end + 1;
  }
  return {wanted.begin(), wanted.end()};
}

}  // namespace oscar
