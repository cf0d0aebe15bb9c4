// Untrusted text in messages.
#pragma once

#include <string>
#include <string_view>

namespace oscar {

// `text` with every byte outside printable ASCII replaced by '?', cut to a sensible length.
inline std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    result += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return text.size() > kLongest ? result + "..." : result;
}

}  // namespace oscar
