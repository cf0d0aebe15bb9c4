// Products with the Hadamard matrix of oscar/core/hadamard.h, and what a head dim that is no power
// of two needs in front of it.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

// a H for `a` [n, dim], by butterflies: dim log2(b) additions a row instead of dim^2.
Matrix TimesHadamard(Matrix a);

// H a for `a` [dim, n]; H is symmetric.
Matrix HadamardTimes(const Matrix& a);

// Column order that hands the columns of a matrix in front of a block Hadamard matrix to its blocks
// like cards: position p = block * b + r takes column r * (dim / b) + block. With eigenvectors in
// order of eigenvalue every block then mixes the whole spectrum, where contiguous blocks would put
// all large eigenvalues into one block and leave its channels wide. The identity when dim = 2^k.
std::vector<int64_t> DealOverBlocks(int64_t dim);

}  // namespace oscar
