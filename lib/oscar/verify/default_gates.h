// The built-in copy of configs/verify/default.json, generated at build time.
#pragma once

#include <string_view>

namespace oscar {

extern const std::string_view kDefaultGates;

}  // namespace oscar
