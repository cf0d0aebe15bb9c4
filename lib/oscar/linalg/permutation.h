// Bit reversal and the column permutation of the public recipe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

// Digit reversal br of 0 .. dim - 1. For dim = 2^k: the k bits of i in reverse order. For
// dim = m 2^k with m odd, i is written with a leading digit of radix m and k bits, and the digits
// are reversed, radices with them: br(d 2^k + r) = bitrev_k(r) m + d. A permutation; its own
// inverse only when dim = 2^k.
std::vector<int64_t> BitReversal(int64_t dim);

// The public recipe's perm: ranks by descending eigenvalue (stable: equal eigenvalues keep their
// order), rank i goes to position br(i), so perm[br(i)] = sorted[i] and (X P)[:, j] =
// X[:, perm[j]]. Strictly ascending eigenvalues give perm[br(i)] = dim - 1 - i whatever they are;
// for dim = 2^k this reads perm[j] = dim - 1 - br(j).
std::vector<int64_t> OfficialPermutation(std::span<const double> eigenvalues);

// X P: column j of the result is column perm[j] of `x`.
Matrix PermuteColumns(const Matrix& x, std::span<const int64_t> perm);

}  // namespace oscar
