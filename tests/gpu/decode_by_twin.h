// Decode attention by its CPU twin.
#pragma once

#include <vector>

#include "gpu/decode_case.h"

namespace oscar::test {

inline DecodeResult Twin(DecodeCase& c, const DecodePlan& plan) {
  DecodeResult result{std::vector<float>(static_cast<size_t>(c.outputs())),
                      std::vector<float>(static_cast<size_t>(c.rows()))};
  DecodeTwin(c.shape, plan, c.HostInputs(), {result.o.data(), DType::kF32, result.lse.data()});
  return result;
}

// With the planner's plan for `blocks` thread blocks.
inline DecodeResult Twin(DecodeCase& c, int64_t blocks) {
  return Twin(c, PlanDecode(c.shape, c.lengths, blocks));
}

}  // namespace oscar::test
