#include "oscar/linalg/eigh.h"

#include <fmt/format.h>
#include <lapacke.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "oscar/core/error.h"
#include "oscar/linalg/orthogonality.h"

namespace oscar {
namespace {

constexpr double kEpsilon = std::numeric_limits<double>::epsilon();

void CheckSymmetric(const Matrix& a) {
  OSCAR_CHECK(a.rows() == a.cols());
  double largest = 0, asymmetry = 0;
  for (Eigen::Index i = 0; i < a.rows(); ++i) {
    for (Eigen::Index j = 0; j < a.cols(); ++j) {
      if (!std::isfinite(a(i, j))) {
        throw Error(ErrorCode::kNumeric, fmt::format("entry ({}, {}) of a {}x{} matrix is {}", i, j,
                                                     a.rows(), a.cols(), a(i, j)));
      }
      largest = std::max(largest, std::abs(a(i, j)));
      asymmetry = std::max(asymmetry, std::abs(a(i, j) - a(j, i)));
    }
  }
  const double bound = static_cast<double>(a.rows()) * kEpsilon * largest;
  if (asymmetry > bound) {
    throw Error(ErrorCode::kNumeric,
                fmt::format("matrix is not symmetric: |a_ij - a_ji| reaches {:.3g}, at most {:.3g} "
                            "expected",
                            asymmetry, bound));
  }
}

[[noreturn]] void ThrowInfo(lapack_int info, Eigen::Index n) {
  if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR) {
    throw Error(ErrorCode::kMemory, fmt::format("no memory for dsyevd of size {}", n));
  }
  // A negative value names a wrong argument: our fault.
  OSCAR_CHECK(info > 0);
  throw Error(ErrorCode::kNumeric,
              fmt::format("dsyevd did not converge on a {}x{} matrix (info {})", n, n, info));
}

}  // namespace

int32_t LapackInt(int64_t value, std::string_view what) {
  if (value < 0 || value > std::numeric_limits<lapack_int>::max()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is {}, which LAPACK's {}-bit integers cannot hold", what, value,
                            8 * sizeof(lapack_int)));
  }
  return static_cast<lapack_int>(value);
}

SymmetricEigen EighSymmetricUnchecked(const Matrix& a) {
  CheckSymmetric(a);
  const lapack_int n = LapackInt(a.rows(), "matrix size");
  // dsyevd needs 1 + 6 n + 2 n^2 doubles: the first quantity to overflow.
  const int64_t wide = n;
  LapackInt(1 + 6 * wide + 2 * wide * wide, "workspace of dsyevd");
  SymmetricEigen result;
  result.values.resize(static_cast<size_t>(n));
  result.vectors.resize(n, n);
  if (n == 0) return result;

  // Symmetric, so row-major and column-major agree on the way in; on the way out the eigenvectors
  // are columns of a column-major array. The mean of the two triangles is what is decomposed.
  Eigen::MatrixXd work_matrix = 0.5 * (a + a.transpose());
  double work_size = 0;
  lapack_int int_work_size = 0;
  lapack_int info = LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, work_matrix.data(), n,
                                        result.values.data(), &work_size, -1, &int_work_size, -1);
  if (info != 0) ThrowInfo(info, n);
  const lapack_int size = LapackInt(static_cast<int64_t>(work_size), "workspace of dsyevd");
  std::vector<double> work(static_cast<size_t>(size));
  std::vector<lapack_int> int_work(static_cast<size_t>(int_work_size));
  info =
      LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', n, work_matrix.data(), n,
                          result.values.data(), work.data(), size, int_work.data(), int_work_size);
  if (info != 0) ThrowInfo(info, n);
  result.vectors = work_matrix;
  return result;
}

SymmetricEigen EighSymmetric(const Matrix& a) {
  SymmetricEigen result = EighSymmetricUnchecked(a);
  const Eigen::Map<const Eigen::RowVectorXd> values(
      result.values.data(), static_cast<Eigen::Index>(result.values.size()));
  const Matrix difference =
      a * result.vectors - (result.vectors.array().rowwise() * values.array()).matrix();
  // stableNorm: entries of 1e-200 or 1e200 must not make the square vanish or overflow.
  const double scale = a.size() == 0 ? 0 : a.stableNorm();
  result.residual = scale == 0 ? 0 : difference.stableNorm() / scale;
  result.residual_units =
      result.residual / (std::max(1.0, static_cast<double>(a.rows())) * kEpsilon);
  result.orthogonality = OrthogonalityError(result.vectors);
  return result;
}

void MakeSignsCanonical(Matrix& columns) {
  for (Eigen::Index j = 0; j < columns.cols(); ++j) {
    Eigen::Index largest = 0;
    for (Eigen::Index i = 1; i < columns.rows(); ++i) {
      if (std::abs(columns(i, j)) > std::abs(columns(largest, j))) largest = i;
    }
    if (columns.rows() > 0 && columns(largest, j) < 0) columns.col(j) *= -1;
  }
}

int64_t NumericalRank(std::span<const double> eigenvalues) {
  double largest = 0;
  for (const double value : eigenvalues) largest = std::max(largest, std::abs(value));
  const double bound = static_cast<double>(eigenvalues.size()) * kEpsilon * largest;
  return std::count_if(eigenvalues.begin(), eigenvalues.end(),
                       [&](double value) { return value > bound; });
}

}  // namespace oscar
