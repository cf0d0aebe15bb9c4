#include "oscar/report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace oscar {
namespace {

size_t Width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U;
  }));
}

}  // namespace

std::string TextTable::ToString(std::string_view indent) const {
  std::vector<size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], Width(row[c]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line(indent);
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string padding(widths[c] - Width(row[c]), ' ');
      if (c > 0) line += "  ";
      line += c == 0 ? row[c] + padding : padding + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string ShortNumber(double value) {
  if (!std::isfinite(value)) return "-";
  if (value == 0) return "0";
  const double magnitude = std::abs(value);
  if (magnitude < 1e-3 || magnitude >= 1e5) return fmt::format("{:.2e}", value);
  const int digits = std::max(0, 2 - static_cast<int>(std::floor(std::log10(magnitude))));
  return fmt::format("{:.{}f}", value, digits);
}

}  // namespace oscar
