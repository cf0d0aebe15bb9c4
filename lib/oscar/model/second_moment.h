// Second moments of rows on the CPU: sum over tokens of x_t^T x_t for one head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/core/dtype.h"

namespace oscar {

// Rows of one head: row t starts at data + t * stride (in elements).
template <typename T>
struct StridedRows {
  const T* data = nullptr;
  int64_t rows = 0;
  int64_t stride = 0;
};

// S = sum_t w_t x_t^T x_t, [dim, dim], and s = sum_t x_t, [dim], both kept in float64.
//
// float32 rows without weights are multiplied and summed in float32 over blocks of kBlockTokens
// tokens, and the blocks are added up in float64. An entry of one block of B tokens is a chain of B
// fused multiply-adds: its error is at most B 2^-24 sum |x_i x_j|, about sqrt(B) 2^-25 of it for
// errors of random sign, and blocks average out. With B = 64 that is below 4e-6 in the worst case
// and near 1e-7 in practice. All other rows are multiplied in float64: sums of bfloat16 products in
// float32, even over blocks of 32 tokens, were measured to keep an error of 2e-8 that does not
// average out over blocks.
//
// The result depends on the rows and their order only, never on the number of threads: an object
// is fed by one thread at a time. Instruction sets with fused multiply-add (AVX2, AVX-512) give
// equal results.
class SecondMomentSum {
 public:
  static constexpr int64_t kBlockTokens = 64;

  explicit SecondMomentSum(int64_t dim);

  void Add(StridedRows<float> rows);
  void Add(StridedRows<BFloat16> rows);
  void Add(StridedRows<double> rows);
  // One weight per row. Leaves row_sum() alone.
  void AddWeighted(StridedRows<float> rows, const double* weights);
  void AddWeighted(StridedRows<BFloat16> rows, const double* weights);

  int64_t dim() const { return dim_; }
  // The whole symmetric matrix, row-major.
  void StoreMatrix(double* out) const;
  std::span<const double> row_sum() const { return row_sum_; }

 private:
  template <typename Real, typename T>
  void AddBlocks(StridedRows<T> rows, const double* weights);

  int64_t dim_;
  int64_t padded_;               // dim_ rounded up to whole tiles; the excess stays zero
  std::vector<double> sum_;      // [padded_, padded_], tiles on and above the diagonal
  std::vector<double> row_sum_;  // [dim_]
};

}  // namespace oscar
