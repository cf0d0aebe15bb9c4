// A query that is no number, among others that are.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "gpu/decode_case.h"

namespace oscar::test {

// Runs run(case) with a NaN in query head `head` of every request: its results must be NaN, those
// of the others as close to the reference as always.
template <typename Run>
void ExpectNaNStaysAlone(const DecodeShape& shape, int64_t head, Run run) {
  SCOPED_TRACE(std::to_string(shape.q_heads) + "x" + std::to_string(shape.cache.heads));
  DecodeCase c(shape, {{300, 0}, {90, 20}, {0, 40}}, 31);
  const DecodeResult reference = Reference(c);
  for (size_t row = static_cast<size_t>(head); row < static_cast<size_t>(c.rows());
       row += static_cast<size_t>(shape.q_heads)) {
    c.q[row * static_cast<size_t>(shape.cache.dim) + 5] =
        ToBFloat16(std::numeric_limits<float>::quiet_NaN());
  }
  DecodeResult result = run(c);
  const auto dim = static_cast<size_t>(shape.cache.dim);
  for (size_t i = 0; i < result.o.size(); ++i) {
    if (static_cast<int64_t>(i / dim) % shape.q_heads != head) continue;
    EXPECT_TRUE(std::isnan(result.o[i])) << i;
    result.o[i] = reference.o[i];
  }
  for (size_t row = 0; row < result.lse.size(); ++row) {
    if (static_cast<int64_t>(row) % shape.q_heads != head) continue;
    EXPECT_TRUE(std::isnan(result.lse[row])) << row;
    result.lse[row] = reference.lse[row];
  }
  EXPECT_LE(Compare(result, reference).output, 1e-3);
  EXPECT_LE(Compare(result, reference).lse, 1e-4);
}

}  // namespace oscar::test
