// Messages on standard error. Shared by this module's sources only.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace oscar::cli {

// Writes to standard error. A message that cannot be written is lost: results and exit codes do
// not depend on whether anybody reads messages. (fmt::print would throw.)
template <typename... Arguments>
void Say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
  const std::string text = fmt::format(format, std::forward<Arguments>(arguments)...);
  std::fwrite(text.data(), 1, text.size(), stderr);
}

}  // namespace oscar::cli
