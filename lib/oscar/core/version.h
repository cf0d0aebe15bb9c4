// Version of the toolkit.
#pragma once

#include <string_view>

namespace oscar {

std::string_view Version();       // "0.1.0"
std::string_view GitRevision();   // short hash, "-dirty" appended when files differ, or "unknown"
std::string_view CompilerName();  // "GNU 12.2.0"

}  // namespace oscar
