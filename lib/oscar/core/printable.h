// Text for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace oscar {

// "1 layer", "2 layers".
inline std::string Counted(int64_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}
inline std::string Counted(size_t count, std::string_view noun) {
  return Counted(static_cast<int64_t>(count), noun);
}

// Untrusted text for messages: `text` with every byte outside printable ASCII replaced by '?', cut
// to a sensible length.
inline std::string Printable(std::string_view text) {
  constexpr size_t kLongest = 120;
  std::string result;
  for (const char c : text.substr(0, kLongest)) {
    result += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return text.size() > kLongest ? result + "..." : result;
}

}  // namespace oscar
