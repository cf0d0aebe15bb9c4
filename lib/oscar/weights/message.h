// Small helpers for error messages about files that may be hostile.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace oscar {

// The parts one after another, as an output stream prints them.
template <typename... Parts>
std::string Message(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// `text` in single quotes on one line: control characters become \xNN, long texts are cut.
std::string Quoted(std::string_view text);

// A shape as "[3, 64]".
std::string ShapeText(const std::vector<int64_t>& shape);

}  // namespace oscar
