// What the loop over 2-bit tokens is made of, alone and together: logic instructions, which cut
// codes out, multiplies of the tensor cores, and arithmetic of single numbers.
#pragma once

#include <vector>

namespace oscar::test {

struct IssueTime {
  const char* name;
  // Of a scheduler, for one warp's share of a tile: 160, 32 and 64 instructions. With sixteen query
  // heads, of twelve warps: 155, 64 and 190.
  double cycles;
};

// On the current device. Throws Error(kDevice) without one, or when a launch fails.
std::vector<IssueTime> MeasureIssue();

}  // namespace oscar::test
