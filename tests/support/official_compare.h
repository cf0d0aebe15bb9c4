// Comparisons with the official calibration vectors: what may differ, by how much and why.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "oscar/h5/file.h"
#include "oscar/linalg/eigh.h"
#include "oscar/rotation/composition.h"

namespace oscar::test {

inline constexpr double kEps = std::numeric_limits<double>::epsilon();
inline constexpr double kFloatUlp = 0x1p-24;  // relative rounding of a float32
inline constexpr double kCovariance = 1e-8;   // required: relative, Frobenius norm
inline constexpr double kEigenvalue = 1e-8;   // required: relative

// Whatever a case keeps of a symmetric matrix: all of it, its lower triangle, or some rows, the
// diagonal, the trace and the norm.
struct Comparison {
  int64_t entries = 0;    // compared
  double difference = 0;  // Frobenius norm over the entries compared
};
// `name` is the dataset of the full matrix, such as "layer_0/k/C"; the parts are `name`_tril and so
// on. `index` picks the matrix of datasets with a leading axis of KV heads; -1: no such axis.
Comparison CompareSymmetric(const H5File& file, const std::string& name, const Matrix& ours,
                            int64_t index = -1);

Matrix ReadMatrix(const H5File& file, const std::string& name);

// Eigenvectors of one target of one layer of a case, and how far the official ones may be off.
struct Subject {
  std::string name;
  std::vector<double> values;
  Matrix vectors;
  bool from_file = false;      // vectors come from a rotation rounded to float32
  std::vector<double> angles;  // bounds, per eigenvector
  std::vector<int64_t> perm;
};

// Fills `angles` and `perm` from `values`. `difference` is |C_ours - C_theirs|, `norm` is |C|.
// Where only a part of C is known, the rest is taken to differ as much as an independent float64
// evaluation may: sums of N products of either sign, N < 1e4, error far below 1e-13 of |C|.
void BoundAngles(Subject& subject, double difference, double norm);

// Compares eigenvectors up to sign and returns ours with the signs of theirs. `theirs` [D, n] are
// columns first .. first + n; entries carry `rounding`.
Matrix MatchColumns(const Subject& subject, const Matrix& theirs, int64_t first, double rounding);

// Undoes a composition; false when it holds no eigenvectors.
bool RecoverBasis(Composition composition, const Matrix& r, const std::vector<int64_t>& perm,
                  Matrix& basis);

// R of an official file against ours: the eigenvectors it holds up to sign, then every entry once
// our eigenvectors have its signs.
void CompareRotation(const Subject& subject, Composition composition, const Matrix& theirs);

}  // namespace oscar::test
