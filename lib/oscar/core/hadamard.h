// The normalised Hadamard transform of rows. Head dims that are no power of two get a block
// transform: H_b repeated along the diagonal, b the largest power of two that divides the dim.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/core/view.h"

namespace oscar {

// Largest power of two that divides `dim`: the order b of the blocks. dim >= 1.
int64_t HadamardBlock(int64_t dim);

// "sylvester" when `dim` is a power of two, "block(b)" otherwise: the name manifests record.
std::string HadamardKind(int64_t dim);

// [dim, dim] row-major: entry (i, j) of a block is (-1)^popcount(i & j) / sqrt(b), so the matrix is
// symmetric and its own inverse (method.md 3.2).
std::vector<double> HadamardMatrix(int64_t dim);

// Replaces every row x [cols] by x H, in place, in cols * log2(b) additions. The order of the
// additions is fixed, so the result does not depend on the machine.
void ApplyHadamard(MatrixView<float> rows);
void ApplyHadamard(MatrixView<double> rows);

}  // namespace oscar
