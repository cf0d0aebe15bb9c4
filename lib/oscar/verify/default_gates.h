// The built-in copies of configs/verify/default.json and kernels.json, generated at build time.
#pragma once

#include <string_view>

namespace oscar {

extern const std::string_view kDefaultGates;
extern const std::string_view kKernelGates;

}  // namespace oscar
