// Rows that upset a careless quantiser, among random ones.
#pragma once

#include <cmath>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/random.h"

namespace oscar::test {

// [count, dim] bf16: Gaussian rows of many sizes; every fourth row one of: zeros, a constant, one
// or six outliers, few levels, exact ties, subnormals, one-signed, ranges near 1e-8, signed zeros,
// huge.
inline std::vector<BFloat16> HardRows(Random& random, int64_t count, int64_t dim) {
  std::vector<BFloat16> rows;
  rows.reserve(static_cast<size_t>(count * dim));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t kind = i % 4 == 3 ? i / 4 % 16 : -1;
    const double size = std::exp2(6 * random.Uniform() - 3);
    for (int64_t d = 0; d < dim; ++d) {
      double x = size * random.Normal();
      switch (kind) {
        case 0:
          x = 0;
          break;
        case 1:
          x = 1.5;
          break;
        case 2:
          x = -0.37;
          break;
        case 3:
          x = d == 17 ? 1000 : x;
          break;
        case 4:
          x = d % 11 == 0 ? 50 * x : x;
          break;
        case 5:
          x = static_cast<double>(random.Below(5)) - 2;
          break;
        case 6:
          x = 0.5 * static_cast<double>(random.Below(7)) - 1.5;
          break;
        case 7:
          x = 1e-40 * random.Normal();
          break;
        case 8:
          x = std::abs(x) + 3;
          break;
        case 9:
          x = 1e-9 * random.Normal();
          break;
        case 10:
          x = random.Below(2) == 0 ? 0.0 : -0.0;
          break;
        case 11:
          x = 1e30 * random.Normal();
          break;
        case 12:
          x = 30000;
          break;
        case 13:
          x = d == 3 ? -7 : 0;
          break;
        case 14:
          x = 1e-30 * random.Normal();
          break;
        case 15:
          x = 996 + 4 * static_cast<double>(random.Below(3));
          break;
        default:
          break;
      }
      rows.push_back(ToBFloat16(static_cast<float>(x)));
    }
  }
  return rows;
}

}  // namespace oscar::test
