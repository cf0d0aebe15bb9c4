// Rotations from eigenvectors, under the names of the public code.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "oscar/linalg/matrix.h"

namespace oscar {

// U: eigenvectors of the target in columns, ascending eigenvalues. H: Hadamard matrix. P: the
// bit-reversal permutation of OfficialPermutation. Products from left to right; rows are rotated
// as x' = x R.
enum class Composition {
  kPlain,    // U
  kPbr,      // P
  kBr,       // U P
  kBrH128,   // U P H, whatever the head dim
  kRH,       // U H
  kHPbr,     // H P
  kHRPbr,    // H U P
  kHPbrR,    // H P U
  kRHPbr,    // U H P, the public recipe
  kHadamard  // H, without any target
};

struct CompositionInfo {
  Composition id;
  std::string_view name;     // value of --composition and part of the file name
  std::string_view formula;  // "U H P"
};

// All compositions in table order.
std::span<const CompositionInfo> CompositionTable();
std::string_view CompositionName(Composition composition);
// Throws Error(kUsage) listing the known names.
Composition CompositionFromName(std::string_view name);

// R [D, D] in float64. `basis` is U, `eigenvalues` [D] are the ones P ranks; kHadamard reads only
// the size of `basis`. When D is no power of two, H is block diagonal and the columns of U that
// meet it directly (kRH, kRHPbr) are dealt over its blocks first (DealOverBlocks).
Matrix Compose(Composition composition, const Matrix& basis, std::span<const double> eigenvalues);

}  // namespace oscar
