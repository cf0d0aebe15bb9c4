#include "oscar/linalg/orthogonality.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "oscar/core/dtype.h"
#include "oscar/core/error.h"

namespace oscar {
namespace {

double LargestDeviation(const Matrix& gram) {
  double largest = 0;
  for (Eigen::Index i = 0; i < gram.rows(); ++i) {
    for (Eigen::Index j = 0; j < gram.cols(); ++j) {
      const double deviation = std::abs(gram(i, j) - (i == j ? 1 : 0));
      // A comparison with NaN is false: it must not look like a small deviation.
      if (!(deviation <= std::numeric_limits<double>::max())) {
        return std::numeric_limits<double>::quiet_NaN();
      }
      largest = std::max(largest, deviation);
    }
  }
  return largest;
}

}  // namespace

double OrthogonalityError(const Matrix& rotation) {
  OSCAR_CHECK(rotation.rows() == rotation.cols());
  const double columns = LargestDeviation(rotation.transpose() * rotation);
  const double rows = LargestDeviation(rotation * rotation.transpose());
  return columns >= rows || std::isnan(columns) ? columns : rows;
}

StoredOrthogonality MeasureStoredOrthogonality(std::span<const float> rotation, int64_t dim) {
  OSCAR_CHECK(static_cast<int64_t>(rotation.size()) == dim * dim);
  Matrix stored(dim, dim), served(dim, dim);
  for (int64_t i = 0; i < dim * dim; ++i) {
    const float entry = rotation[static_cast<size_t>(i)];
    stored.data()[i] = static_cast<double>(entry);
    served.data()[i] = static_cast<double>(RoundToBFloat16(entry));
  }
  return {OrthogonalityError(stored), OrthogonalityError(served)};
}

std::vector<float> RoundToFloat(const Matrix& matrix) {
  std::vector<float> result(static_cast<size_t>(matrix.size()));
  std::transform(matrix.data(), matrix.data() + matrix.size(), result.begin(),
                 [](double x) { return static_cast<float>(x); });
  return result;
}

}  // namespace oscar
