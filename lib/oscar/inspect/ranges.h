// Layer numbers for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace oscar {

// "0-3, 7, 9-11" for ascending numbers; repeated ones count once.
std::string RangesOf(const std::vector<int64_t>& ascending);

}  // namespace oscar
