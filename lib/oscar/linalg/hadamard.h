// Hadamard matrices of head dims, powers of two or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/linalg/matrix.h"

namespace oscar {

// Largest b = 2^k that divides n; n >= 1.
int64_t LargestPowerOfTwoDivisor(int64_t n);

// The normalised Hadamard matrix H [dim, dim] of this toolkit: symmetric, H H = I.
//   dim = 2^k:  Sylvester's, H(i, j) = (-1)^popcount(i & j) / sqrt(dim), as the public code builds.
//   otherwise:  block diagonal, dim / b Sylvester blocks of size b = LargestPowerOfTwoDivisor(dim);
//               an order-dim Hadamard matrix need not exist, and no engine's kernel has one.
// An odd dim gives the identity.
Matrix HadamardMatrix(int64_t dim);

// What HadamardMatrix(dim) is: "sylvester" or "block_<b>".
std::string HadamardKind(int64_t dim);

// a <- a H for `a` [n, dim], by butterflies: dim log2(b) additions a row instead of dim^2.
void MultiplyByHadamard(Matrix& a);

// Column order that hands the columns of `a` in front of a block Hadamard matrix to its blocks like
// cards: position p = block * b + r takes column r * (dim / b) + block. With eigenvectors in order
// of eigenvalue every block then mixes the whole spectrum, where contiguous blocks would put all
// large eigenvalues into one block and leave its channels wide. The identity when dim = 2^k.
std::vector<int64_t> DealOverBlocks(int64_t dim);

}  // namespace oscar
