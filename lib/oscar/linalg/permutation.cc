#include "oscar/linalg/permutation.h"

#include <algorithm>
#include <numeric>

#include "oscar/core/error.h"
#include "oscar/core/hadamard.h"

namespace oscar {

std::vector<int64_t> BitReversal(int64_t dim) {
  const int64_t block = HadamardBlock(dim);
  const int64_t lead = dim / block;
  std::vector<int64_t> result(static_cast<size_t>(dim));
  for (int64_t i = 0; i < dim; ++i) {
    int64_t reversed = 0;
    int64_t rest = i % block;
    for (int64_t bit = 1; bit < block; bit *= 2) {
      reversed = 2 * reversed + rest % 2;
      rest /= 2;
    }
    result[static_cast<size_t>(i)] = reversed * lead + i / block;
  }
  return result;
}

std::vector<int64_t> OfficialPermutation(std::span<const double> eigenvalues) {
  const size_t dim = eigenvalues.size();
  std::vector<int64_t> sorted(dim);
  std::iota(sorted.begin(), sorted.end(), int64_t{0});
  std::stable_sort(sorted.begin(), sorted.end(), [&](int64_t a, int64_t b) {
    return eigenvalues[static_cast<size_t>(a)] > eigenvalues[static_cast<size_t>(b)];
  });
  const std::vector<int64_t> reversed = BitReversal(static_cast<int64_t>(dim));
  std::vector<int64_t> perm(dim);
  for (size_t rank = 0; rank < dim; ++rank) {
    perm[static_cast<size_t>(reversed[rank])] = sorted[rank];
  }
  return perm;
}

Matrix PermuteColumns(const Matrix& x, std::span<const int64_t> perm) {
  OSCAR_CHECK(static_cast<int64_t>(perm.size()) == x.cols());
  Matrix result(x.rows(), x.cols());
  for (Eigen::Index i = 0; i < x.rows(); ++i) {
    for (Eigen::Index j = 0; j < x.cols(); ++j) {
      result(i, j) = x(i, perm[static_cast<size_t>(j)]);
    }
  }
  return result;
}

}  // namespace oscar
