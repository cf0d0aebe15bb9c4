// The value of --layers.
#pragma once

#include <string_view>
#include <vector>

namespace oscar {

// "0-3,7" as ascending layer numbers without repetition, all of `available` (ascending) when empty.
// Throws Error(kUsage) for anything else and for layers that are not available.
std::vector<int> SelectLayers(std::string_view list, const std::vector<int>& available);

}  // namespace oscar
