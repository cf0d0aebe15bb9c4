// The matrix type of the toolkit's offline mathematics.
#pragma once

#include <Eigen/Core>

namespace oscar {

// [rows, cols] float64, row-major. The same alias stands in oscar/stats/moments.h; both name one
// Eigen type, since the two modules may not include each other.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace oscar
