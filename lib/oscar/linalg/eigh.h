// Eigendecomposition of symmetric matrices in float64.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

// A = U diag(values) U^T.
struct SymmetricEigen {
  std::vector<double> values;  // [n], ascending
  Matrix vectors;              // [n, n], U: eigenvector j in column j
  double residual = 0;         // |A U - U diag(values)|_F / |A|_F; 0 when A is 0
  double residual_units = 0;   // residual / (n eps): near or below 1 for a backward stable solver
  double orthogonality = 0;    // max |U^T U - I|
};

// LAPACK dsyevd of the symmetric matrix `a` [n, n], n >= 0. Column signs are the solver's.
// Throws Error(kNumeric) when an entry is not finite (naming it), when `a` is not symmetric to
// n * eps * max |a|, or when the solver does not converge; Error(kUnsupported) when n does not fit
// LAPACK's 32-bit integers. Thread-safe; costs about 9 n^3 multiply-adds, residuals included.
SymmetricEigen EighSymmetric(const Matrix& a);

// The solver alone: as EighSymmetric, with the three error measures left 0.
SymmetricEigen EighSymmetricUnchecked(const Matrix& a);

// Flips columns so that the entry of largest magnitude (the first of equals) is positive. Makes
// eigenvectors of separated eigenvalues independent of the solver.
void MakeSignsCanonical(Matrix& columns);

// Number of eigenvalues above n * eps * (largest |eigenvalue|): the rank that float64 can tell.
int64_t NumericalRank(std::span<const double> eigenvalues);

// `value` as LAPACK's 32-bit integer. Throws Error(kUnsupported) naming `what` when it does not
// fit.
int32_t LapackInt(int64_t value, std::string_view what);

}  // namespace oscar
