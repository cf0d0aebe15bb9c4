#include "oscar/linalg/hadamard.h"

#include "oscar/core/hadamard.h"
#include "oscar/core/view.h"

namespace oscar {

Matrix TimesHadamard(Matrix a) {
  ApplyHadamard(MatrixView<double>{a.data(), a.rows(), a.cols()});
  return a;
}

Matrix HadamardTimes(const Matrix& a) { return TimesHadamard(a.transpose()).transpose(); }

std::vector<int64_t> DealOverBlocks(int64_t dim) {
  const int64_t block = HadamardBlock(dim);
  const int64_t blocks = dim / block;
  std::vector<int64_t> order(static_cast<size_t>(dim));
  for (int64_t p = 0; p < dim; ++p) {
    order[static_cast<size_t>(p)] = p % block * blocks + p / block;
  }
  return order;
}

}  // namespace oscar
