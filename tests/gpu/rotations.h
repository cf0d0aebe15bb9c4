// Rotations for tests of the write and decode kernels, and what rotated rows have to be.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/core/hadamard.h"
#include "oscar/core/random.h"

namespace oscar::test {

// `count` matrices [dim, dim]: the rows of a Hadamard matrix with random signs. Orthogonal up to
// the rounding of 1 / sqrt(dim), no two alike, none its own transpose. A constant row comes out
// with all of its size in a few channels, a row with one large channel without any.
inline std::vector<BFloat16> SignedHadamards(Random& random, int64_t count, int64_t dim) {
  const std::vector<double> hadamard = HadamardMatrix(dim);
  std::vector<BFloat16> matrices;
  for (int64_t i = 0; i < count * dim; ++i) {
    const double sign = random.Below(2) == 0 ? 1 : -1;
    for (int64_t j = 0; j < dim; ++j) {
      const double x = sign * hadamard[static_cast<size_t>(i % dim * dim + j)];
      matrices.push_back(ToBFloat16(static_cast<float>(x)));
    }
  }
  return matrices;
}

// The same without random signs: constant rows give one large channel and zeros exactly.
inline std::vector<BFloat16> PlainHadamard(int64_t dim) {
  std::vector<BFloat16> matrix;
  for (const double x : HadamardMatrix(dim)) matrix.push_back(ToBFloat16(static_cast<float>(x)));
  return matrix;
}

// Normal matrices, which keep the size of rows.
inline std::vector<BFloat16> NormalMatrices(Random& random, int64_t count, int64_t dim) {
  std::vector<BFloat16> matrices;
  for (int64_t i = 0; i < count * dim * dim; ++i) {
    const double x = random.Normal() / std::sqrt(static_cast<double>(dim));
    matrices.push_back(ToBFloat16(static_cast<float>(x)));
  }
  return matrices;
}

// One of each kind: as many matrices as heads, or one of a layer, which may be without random
// signs.
inline std::vector<std::vector<BFloat16>> RotationsOfEveryKind(Random& random, int64_t count,
                                                               int64_t dim, bool per_head) {
  std::vector<std::vector<BFloat16>> kinds = {NormalMatrices(random, count, dim),
                                              SignedHadamards(random, count, dim)};
  if (!per_head) kinds.push_back(PlainHadamard(dim));
  return kinds;
}

inline std::vector<BFloat16> IdentityMatrices(int64_t count, int64_t dim) {
  std::vector<BFloat16> matrices(static_cast<size_t>(count * dim * dim), BFloat16{0});
  for (int64_t i = 0; i < count * dim; ++i) {
    matrices[static_cast<size_t>(i * dim + i % dim)] = ToBFloat16(1.0F);
  }
  return matrices;
}

// Row i of `rows` [tokens, heads, dim], rotated, is row i of `found`. Head h has the matrix
// h / heads_per_matrix.
//
// Products of two bf16 numbers are exact in float32. A sum of dim of them in order is within
// dim 2^-24 of the sum of their magnitudes; tensor cores align 16 products and the sum so far and
// drop what lies below 2^-24 of the largest (decode_limits.h says by how much more), in all at most
// 17/16 as much: twice that is allowed. Rounding to bf16 adds 2^-8 of the number, or half of the
// least subnormal; float32 subnormals are rounded to 2^-150 each.
inline void ExpectRotated(const std::vector<BFloat16>& rows, const std::vector<BFloat16>& matrices,
                          int64_t heads, int64_t heads_per_matrix, int64_t dim,
                          const std::vector<BFloat16>& found) {
  ASSERT_EQ(rows.size(), found.size());
  const double unit = 2 * static_cast<double>(dim) * 0x1p-24;
  for (int64_t row = 0; row < static_cast<int64_t>(rows.size()) / dim; ++row) {
    const BFloat16* const x = rows.data() + row * dim;
    const BFloat16* const r = matrices.data() + row % heads / heads_per_matrix * dim * dim;
    for (int64_t j = 0; j < dim; ++j) {
      double expected = 0, size = 0;
      for (int64_t d = 0; d < dim; ++d) {
        const double term =
            static_cast<double>(ToFloat(x[d])) * static_cast<double>(ToFloat(r[d * dim + j]));
        expected += term;
        size += std::abs(term);
      }
      const double allowed = 0x1p-8 * std::abs(expected) + unit * size + 0x1p-133;
      ASSERT_NEAR(static_cast<double>(ToFloat(found[static_cast<size_t>(row * dim + j)])), expected,
                  allowed)
          << "row " << row << " channel " << j << " dim " << dim;
    }
  }
}

// Sums know no negative zero.
inline std::vector<BFloat16> WithoutNegativeZeros(std::vector<BFloat16> rows) {
  for (BFloat16& x : rows) {
    if (x.bits == 0x8000) x.bits = 0;
  }
  return rows;
}

inline bool SameRows(const std::vector<BFloat16>& a, const std::vector<BFloat16>& b) {
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(),
                    [](BFloat16 x, BFloat16 y) { return x.bits == y.bits; });
}

}  // namespace oscar::test
