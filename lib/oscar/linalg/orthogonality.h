// How far a matrix is from orthogonal, as computed, as stored and as served.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

// max |R^T R - I| and max |R R^T - I|, the larger, in float64. R is square; 0 for an empty matrix;
// NaN when an entry is not finite.
double OrthogonalityError(const Matrix& rotation);

// Orthogonality of one float32 rotation [dim, dim], products in float64.
struct StoredOrthogonality {
  double as_stored = 0;  // of the float32 matrix in the file
  double as_served = 0;  // after rounding to bfloat16, as serving engines load it
};
StoredOrthogonality MeasureStoredOrthogonality(std::span<const float> rotation, int64_t dim);

// Entries rounded to float32, row-major.
std::vector<float> RoundToFloat(const Matrix& matrix);

}  // namespace oscar
