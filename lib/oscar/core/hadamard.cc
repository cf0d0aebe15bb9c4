#include "oscar/core/hadamard.h"

#include <bit>
#include <cmath>

#include "oscar/core/error.h"

namespace oscar {
namespace {

template <typename T>
void ApplyToRows(MatrixView<T> rows) {
  if (rows.cols == 0) return;
  const int64_t block = HadamardBlock(rows.cols);
  const T norm = static_cast<T>(1.0 / std::sqrt(static_cast<double>(block)));
  for (int64_t i = 0; i < rows.rows; ++i) {
    T* const row = rows.Row(i);
    for (int64_t half = 1; half < block; half *= 2) {
      // Blocks are multiples of 2 * half, so one sweep over the row serves all of them.
      for (int64_t start = 0; start < rows.cols; start += 2 * half) {
        for (int64_t j = start; j < start + half; ++j) {
          const T a = row[j];
          const T b = row[j + half];
          row[j] = a + b;
          row[j + half] = a - b;
        }
      }
    }
    for (int64_t j = 0; j < rows.cols; ++j) row[j] *= norm;
  }
}

}  // namespace

int64_t HadamardBlock(int64_t dim) {
  OSCAR_CHECK(dim >= 1);
  return dim & -dim;
}

std::string HadamardKind(int64_t dim) {
  const int64_t block = HadamardBlock(dim);
  return block == dim ? "sylvester" : "block(" + std::to_string(block) + ")";
}

std::vector<double> HadamardMatrix(int64_t dim) {
  const int64_t block = HadamardBlock(dim);
  const double norm = 1.0 / std::sqrt(static_cast<double>(block));
  std::vector<double> h(static_cast<size_t>(dim * dim), 0.0);
  for (int64_t i = 0; i < dim; ++i) {
    const int64_t start = i - i % block;
    for (int64_t j = start; j < start + block; ++j) {
      const auto common = static_cast<uint64_t>((i - start) & (j - start));
      h[static_cast<size_t>(i * dim + j)] = std::popcount(common) % 2 == 0 ? norm : -norm;
    }
  }
  return h;
}

void ApplyHadamard(MatrixView<float> rows) { ApplyToRows(rows); }
void ApplyHadamard(MatrixView<double> rows) { ApplyToRows(rows); }

}  // namespace oscar
