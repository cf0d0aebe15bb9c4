#include "oscar/linalg/hadamard.h"

#include <bit>
#include <cmath>

#include "oscar/core/error.h"

namespace oscar {

int64_t LargestPowerOfTwoDivisor(int64_t n) {
  OSCAR_CHECK(n >= 1);
  return n & -n;
}

Matrix HadamardMatrix(int64_t dim) {
  const int64_t block = LargestPowerOfTwoDivisor(dim);
  const double entry = 1 / std::sqrt(static_cast<double>(block));
  Matrix result = Matrix::Zero(dim, dim);
  for (int64_t begin = 0; begin < dim; begin += block) {
    for (int64_t i = 0; i < block; ++i) {
      for (int64_t j = 0; j < block; ++j) {
        const bool odd = (std::popcount(static_cast<uint64_t>(i & j)) & 1) != 0;
        result(begin + i, begin + j) = odd ? -entry : entry;
      }
    }
  }
  return result;
}

std::string HadamardKind(int64_t dim) {
  const int64_t block = LargestPowerOfTwoDivisor(dim);
  return block == dim ? "sylvester" : "block_" + std::to_string(block);
}

void MultiplyByHadamard(Matrix& a) {
  const int64_t dim = a.cols();
  if (dim == 0) return;
  const int64_t block = LargestPowerOfTwoDivisor(dim);
  for (int64_t row = 0; row < a.rows(); ++row) {
    double* x = a.data() + row * dim;
    // Blocks are whole multiples of 2 * half, so one sweep serves all of them.
    for (int64_t half = 1; half < block; half *= 2) {
      for (int64_t begin = 0; begin < dim; begin += 2 * half) {
        for (int64_t i = begin; i < begin + half; ++i) {
          const double low = x[i], high = x[i + half];
          x[i] = low + high;
          x[i + half] = low - high;
        }
      }
    }
  }
  a *= 1 / std::sqrt(static_cast<double>(block));
}

std::vector<int64_t> DealOverBlocks(int64_t dim) {
  const int64_t block = LargestPowerOfTwoDivisor(dim);
  const int64_t blocks = dim / block;
  std::vector<int64_t> order(static_cast<size_t>(dim));
  for (int64_t p = 0; p < dim; ++p) {
    order[static_cast<size_t>(p)] = p % block * blocks + p / block;
  }
  return order;
}

}  // namespace oscar
