// Clip thresholds: selection without sorting, and the bisection of the public decode flush.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/quant/quantiser.h"

namespace oscar {
namespace {

// Bits of |x|: as integers, finite magnitudes are ordered like the numbers.
int32_t MagnitudeBits(float x) { return std::bit_cast<int32_t>(x) & 0x7fffffff; }

int64_t CountUpTo(const float* row, int64_t dim, int32_t limit) {
  int32_t count = 0;
  for (int64_t i = 0; i < dim; ++i) count += MagnitudeBits(row[i]) <= limit ? 1 : 0;
  return count;
}

int32_t LargestUpTo(const float* row, int64_t dim, int32_t limit) {
  int32_t largest = 0;
  for (int64_t i = 0; i < dim; ++i) {
    const int32_t bits = MagnitudeBits(row[i]);
    largest = std::max(largest, bits <= limit ? bits : 0);
  }
  return largest;
}

}  // namespace

int64_t ClipIndex(double ratio, int64_t dim) {
  if (!(ratio > 0)) return -1;
  // The product is formed in float64 as the public launcher does; beyond 1 every ratio means 1.
  const double position = std::min(ratio * static_cast<double>(dim), static_cast<double>(dim - 1));
  return static_cast<int64_t>(position);
}

float OrderStatistic(const float* row, int64_t dim, int64_t index) {
  OSCAR_DCHECK(index >= 0 && index < dim);
  // Smallest `low` with more than `index` magnitudes up to it. About 9 counting passes for random
  // rows, 31 for ties, each free of branches.
  int32_t low = 0;
  int32_t high = LargestUpTo(row, dim, std::numeric_limits<int32_t>::max());
  while (low < high) {
    const int32_t middle = low + (high - low) / 2;
    const int64_t count = CountUpTo(row, dim, middle);
    if (count == index + 1) return std::bit_cast<float>(LargestUpTo(row, dim, middle));
    if (count > index) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return std::bit_cast<float>(low);
}

float BisectedThreshold(const float* row, int64_t dim, int64_t index) {
  if (dim < 64) return OrderStatistic(row, dim, index);
  float low = 0;
  float high = std::bit_cast<float>(LargestUpTo(row, dim, std::numeric_limits<int32_t>::max()));
  const auto steps = static_cast<int>(std::bit_width(static_cast<uint64_t>(dim))) - 1;
  for (int step = 0; step < steps; ++step) {
    const float middle = (low + high) * 0.5F;
    const int64_t above = dim - CountUpTo(row, dim, MagnitudeBits(middle));
    if (above > dim - index) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return high;
}

}  // namespace oscar
