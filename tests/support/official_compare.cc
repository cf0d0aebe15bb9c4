#include "support/official_compare.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/permutation.h"

namespace oscar::test {
namespace {

void Compare(double ours, double theirs, Comparison& sum) {
  sum.difference = std::hypot(sum.difference, ours - theirs);
  ++sum.entries;
}

// `index` picks the matrix of a dataset with a leading axis of KV heads; -1: no such axis.
std::vector<int64_t> Inverse(const std::vector<int64_t>& perm) {
  std::vector<int64_t> inverse(perm.size());
  for (size_t j = 0; j < perm.size(); ++j)
    inverse[static_cast<size_t>(perm[j])] = static_cast<int64_t>(j);
  return inverse;
}

// Sine of the angle between eigenvector j of C and of C + E, |E| <= error (Davis and Kahan, in the
// form |E| / (gap - |E|) with the gap to the other eigenvalues of either matrix).
std::vector<double> AngleBounds(const std::vector<double>& eigenvalues, double error) {
  const size_t n = eigenvalues.size();
  std::vector<double> bounds(n);
  for (size_t j = 0; j < n; ++j) {
    double gap = std::numeric_limits<double>::infinity();
    if (j > 0) gap = std::min(gap, eigenvalues[j] - eigenvalues[j - 1]);
    if (j + 1 < n) gap = std::min(gap, eigenvalues[j + 1] - eigenvalues[j]);
    bounds[j] = gap > 2 * error ? error / (gap - error) : 1;
  }
  return bounds;
}

}  // namespace

Comparison CompareSymmetric(const H5File& file, const std::string& name, const Matrix& ours,
                            int64_t index) {
  Comparison sum;
  const int64_t dim = ours.rows();
  const auto read = [&](const std::string& part, int64_t each) {
    std::vector<double> data = file.Read<double>(part);
    if (index >= 0) {
      data.assign(data.begin() + index * each, data.begin() + (index + 1) * each);
    }
    return data;
  };
  if (file.HasDataset(name)) {
    const std::vector<double> full = read(name, dim * dim);
    for (int64_t i = 0; i < dim * dim; ++i) {
      Compare(ours.data()[i], full[static_cast<size_t>(i)], sum);
    }
  }
  if (file.HasDataset(name + "_tril")) {
    const std::vector<double> lower = read(name + "_tril", dim * (dim + 1) / 2);
    size_t next = 0;
    for (int64_t i = 0; i < dim; ++i) {
      for (int64_t j = 0; j <= i; ++j) Compare(ours(i, j), lower[next++], sum);
    }
  }
  if (file.HasDataset(name + "_rows")) {
    const std::vector<int64_t> shape = file.Dataset(name + "_rows").shape();
    const int64_t rows = shape[shape.size() - 2];
    const std::vector<double> data = read(name + "_rows", rows * dim);
    for (int64_t i = 0; i < rows * dim; ++i) {
      Compare(ours.data()[i], data[static_cast<size_t>(i)], sum);
    }
  }
  if (file.HasDataset(name + "_diag")) {
    const std::vector<double> diagonal = read(name + "_diag", dim);
    for (int64_t i = 0; i < dim; ++i) Compare(ours(i, i), diagonal[static_cast<size_t>(i)], sum);
  }
  if (index < 0 && file.HasDataset(name + "_fro")) {
    Compare(ours.norm(), file.Read<double>(name + "_fro").at(0), sum);
  }
  // The trace adds up the errors of the diagonal.
  if (index < 0 && file.HasDataset(name + "_trace")) {
    EXPECT_NEAR(ours.trace(), file.Read<double>(name + "_trace").at(0),
                kCovariance * std::abs(ours.trace()));
  }
  return sum;
}

Matrix ReadMatrix(const H5File& file, const std::string& name) {
  const H5Dataset dataset = file.Dataset(name);
  const std::vector<double> data = dataset.Read<double>();
  return Eigen::Map<const Matrix>(data.data(), dataset.shape().at(0), dataset.shape().at(1));
}

void BoundAngles(Subject& subject, double difference, double norm) {
  // |C_ours - C_theirs| plus the backward errors of both solvers, each at most 2 n eps |C| here
  // (callers measure ours; LAPACK behind the official program is of the same kind).
  const double backward = 4 * static_cast<double>(subject.values.size()) * kEps * norm;
  subject.angles = AngleBounds(subject.values, std::max(difference, 1e-13 * norm) + backward);
  subject.perm = OfficialPermutation(subject.values);
}

Matrix MatchColumns(const Subject& subject, const Matrix& theirs, int64_t first, double rounding) {
  Matrix aligned = subject.vectors;
  // Entries of R are rounded by at most 2^-24 |r|: 2^-24 in the norm of a column, and orthogonal
  // factors keep norms of rows or columns; sqrt(D) covers the compositions that mix both.
  const double own =
      subject.from_file ? std::sqrt(static_cast<double>(aligned.rows())) * kFloatUlp : 0;
  double worst = 0;
  for (int64_t j = 0; j < theirs.cols(); ++j) {
    auto column = aligned.col(first + j);
    if (column.dot(theirs.col(j)) < 0) column *= -1;
    // The distance of unit vectors is at most sqrt(2) times the sine of their angle (< 90 degrees).
    const double bound =
        std::sqrt(2.0) * subject.angles[static_cast<size_t>(first + j)] + own + rounding;
    const double distance = (column - theirs.col(j)).norm();
    EXPECT_LE(distance, bound) << subject.name << " eigenvector " << first + j;
    worst = std::max(worst, bound);
  }
  // The bound must not be empty: unrelated unit vectors are about sqrt(2) apart.
  EXPECT_LT(worst, 0.5) << subject.name;
  return aligned;
}

bool RecoverBasis(Composition composition, const Matrix& r, const std::vector<int64_t>& perm,
                  Matrix& basis) {
  const std::vector<int64_t> back = Inverse(perm);
  switch (composition) {
    case Composition::kPlain:
      basis = r;
      return true;
    case Composition::kBr:
      basis = PermuteColumns(r, back);
      return true;
    case Composition::kBrH128:
      basis = PermuteColumns(TimesHadamard(r), back);
      return true;
    case Composition::kRH:
      basis = TimesHadamard(r);
      return true;
    case Composition::kRHPbr:
      basis = TimesHadamard(PermuteColumns(r, back));
      return true;
    case Composition::kHRPbr:
      basis = HadamardTimes(PermuteColumns(r, back));
      return true;
    case Composition::kHPbrR: {
      const Matrix hp = PermuteColumns(TimesHadamard(Matrix::Identity(r.rows(), r.cols())), perm);
      basis = hp.transpose() * r;
      return true;
    }
    default:
      return false;
  }
}

void CompareRotation(const Subject& subject, Composition composition, const Matrix& theirs) {
  const auto dim = static_cast<double>(theirs.rows());
  Matrix basis, aligned = subject.vectors;
  double drift = 0;
  if (RecoverBasis(composition, theirs, subject.perm, basis)) {
    // The rounding of R spreads over the basis as in MatchColumns.
    aligned = MatchColumns(subject, basis, 0, std::sqrt(dim) * kFloatUlp);
    for (const double angle : subject.angles) drift += 2 * angle * angle;
  }
  // |dR_ij| = |(dU H P)_ij| <= norm of row i of dU <= |dU|_F, and the float32 rounding of
  // theirs; ours, when it comes from a file, was rounded as R and is an R again: once more.
  const double bound = std::sqrt(drift) + (subject.from_file ? 2 : 1) * kFloatUlp;
  const Matrix ours = Compose(composition, aligned, subject.values);
  EXPECT_LE((ours - theirs).cwiseAbs().maxCoeff(), bound)
      << subject.name << " " << CompositionName(composition);
}

}  // namespace oscar::test
