// Plain text tables for terminals.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// Columns separated by two spaces; the first is left-aligned, the others right-aligned. Width is
// counted in UTF-8 code points. Missing cells are empty. No trailing spaces.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> header) : rows_{std::move(header)} {}
  void Row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string ToString(std::string_view indent = "") const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Three significant digits, switching to exponents below 1e-3 and from 1e5; "0" only for zero.
std::string ShortNumber(double value);

}  // namespace oscar
