#include "oscar/model/second_moment.h"

#include <algorithm>
#include <type_traits>

#include "oscar/core/error.h"
#include "oscar/model/cpu_dispatch.h"

namespace oscar {
namespace {

// Tiles of register sums are kTileCols columns wide; their height is chosen per instruction set so
// that the sums fit its registers, and divides kTileCols.
constexpr int64_t kTileCols = 32;

// 64 bytes of float or double as a value (Vector) and anywhere in memory (Loose).
typedef float FloatVector __attribute__((vector_size(64)));
typedef float LooseFloats __attribute__((vector_size(64), aligned(4), may_alias));
typedef double DoubleVector __attribute__((vector_size(64)));
typedef double LooseDoubles __attribute__((vector_size(64), aligned(8), may_alias));

template <typename Real>
struct Lanes;
template <>
struct Lanes<float> {
  typedef FloatVector Vector;
  typedef LooseFloats Loose;
};
template <>
struct Lanes<double> {
  typedef DoubleVector Vector;
  typedef LooseDoubles Loose;
};

// sum[i, j] += sum_t a[t, i] x[t, j] for every tile that meets the upper triangle. a and x are
// [tokens, padded], zero beyond the head's dim. Products and their sum over the block are `Real`.
// The tile is never addressed in memory, so that it stays in registers.
template <typename Real, size_t kTileRows>
[[gnu::always_inline]] inline void AddTiles(const Real* a, const Real* x, int64_t tokens,
                                            int64_t padded, double* sum) {
  using Vector = typename Lanes<Real>::Vector;
  using Loose = typename Lanes<Real>::Loose;
  constexpr size_t kLanes = 64 / sizeof(Real);
  constexpr size_t kVectors = kTileCols / kLanes;
  for (int64_t i = 0; i < padded; i += int64_t{kTileRows}) {
    for (int64_t j = i / kTileCols * kTileCols; j < padded; j += kTileCols) {
      Vector tile[kTileRows][kVectors] = {};
      for (int64_t t = 0; t < tokens; ++t) {
        const Real* left = a + t * padded + i;
        const Loose* right = reinterpret_cast<const Loose*>(x + t * padded + j);
        for (size_t r = 0; r < kTileRows; ++r) {
          for (size_t v = 0; v < kVectors; ++v) tile[r][v] += left[r] * right[v];
        }
      }
      for (size_t r = 0; r < kTileRows; ++r) {
        LooseDoubles* row =
            reinterpret_cast<LooseDoubles*>(sum + (i + static_cast<int64_t>(r)) * padded + j);
        for (size_t v = 0; v < kVectors; ++v) {
          const Vector products = tile[r][v];
          if constexpr (sizeof(Real) == sizeof(double)) {
            row[v] += products;
          } else {
            row[2 * v] += __builtin_convertvector(
                __builtin_shufflevector(products, products, 0, 1, 2, 3, 4, 5, 6, 7), DoubleVector);
            row[2 * v + 1] += __builtin_convertvector(
                __builtin_shufflevector(products, products, 8, 9, 10, 11, 12, 13, 14, 15),
                DoubleVector);
          }
        }
      }
    }
  }
}

OSCAR_CPU_VARIANTS(AddFloatTiles, (const float* x, int64_t tokens, int64_t padded, double* sum),
                   (AddTiles<float, 8>(x, x, tokens, padded, sum)),
                   (AddTiles<float, 2>(x, x, tokens, padded, sum)),
                   (AddTiles<float, 2>(x, x, tokens, padded, sum)))
OSCAR_CPU_VARIANTS(AddDoubleTiles,
                   (const double* a, const double* x, int64_t tokens, int64_t padded, double* sum),
                   (AddTiles<double, 4>(a, x, tokens, padded, sum)),
                   (AddTiles<double, 1>(a, x, tokens, padded, sum)),
                   (AddTiles<double, 1>(a, x, tokens, padded, sum)))

// One row of a head, widened (or copied) to Real, added to `total` in float64.
template <typename Real, typename T>
[[gnu::always_inline]] inline void PackRow(const T* row, int64_t dim, Real* out, double* total) {
  for (int64_t c = 0; c < dim; ++c) {
    Real value;
    if constexpr (std::is_same_v<T, BFloat16>) {
      value = static_cast<Real>(ToFloat(row[c]));
    } else {
      value = static_cast<Real>(row[c]);
    }
    out[c] = value;
    total[c] += static_cast<double>(value);
  }
}

template <typename T, typename Real>
[[gnu::always_inline]] inline void PackRows(const StridedRows<T>& rows, int64_t dim, int64_t padded,
                                            Real* out, double* total) {
  for (int64_t t = 0; t < rows.rows; ++t) {
    PackRow(rows.data + t * rows.stride, dim, out + t * padded, total);
  }
}

#define OSCAR_PACK_VARIANTS(name, T, Real)                                                       \
  OSCAR_CPU_VARIANTS(                                                                            \
      name, (const StridedRows<T>& rows, int64_t dim, int64_t padded, Real* out, double* total), \
      ((PackRows<T, Real>(rows, dim, padded, out, total))),                                      \
      ((PackRows<T, Real>(rows, dim, padded, out, total))),                                      \
      ((PackRows<T, Real>(rows, dim, padded, out, total))))
OSCAR_PACK_VARIANTS(PackFloatAsFloat, float, float)
OSCAR_PACK_VARIANTS(PackFloatAsDouble, float, double)
OSCAR_PACK_VARIANTS(PackBFloat16AsDouble, BFloat16, double)
OSCAR_PACK_VARIANTS(PackDoubleAsDouble, double, double)

void Pack(const StridedRows<float>& rows, int64_t dim, int64_t padded, float* out, double* total) {
  PackFloatAsFloat(rows, dim, padded, out, total);
}
void Pack(const StridedRows<float>& rows, int64_t dim, int64_t padded, double* out, double* total) {
  PackFloatAsDouble(rows, dim, padded, out, total);
}
void Pack(const StridedRows<BFloat16>& rows, int64_t dim, int64_t padded, double* out,
          double* total) {
  PackBFloat16AsDouble(rows, dim, padded, out, total);
}
void Pack(const StridedRows<double>& rows, int64_t dim, int64_t padded, double* out,
          double* total) {
  PackDoubleAsDouble(rows, dim, padded, out, total);
}

}  // namespace

SecondMomentSum::SecondMomentSum(int64_t dim)
    : dim_(dim),
      padded_((dim + kTileCols - 1) / kTileCols * kTileCols),
      sum_(static_cast<size_t>(padded_ * padded_)),
      row_sum_(static_cast<size_t>(dim)) {
  OSCAR_CHECK(dim > 0);
}

template <typename Real, typename T>
void SecondMomentSum::AddBlocks(StridedRows<T> rows, const double* weights) {
  // Blocks of equal bytes: a block of 128 channels stays in a first-level cache of 32 KiB.
  constexpr int64_t block_tokens = std::is_same_v<Real, float> ? kBlockTokens : kBlockTokens / 2;
  std::vector<Real> block(static_cast<size_t>(block_tokens * padded_));
  std::vector<double> weighted(weights == nullptr ? 0 : block.size());
  std::vector<double> unused(static_cast<size_t>(dim_));
  double* total = weights == nullptr ? row_sum_.data() : unused.data();
  for (int64_t begin = 0; begin < rows.rows; begin += block_tokens) {
    const int64_t count = std::min(block_tokens, rows.rows - begin);
    Pack({rows.data + begin * rows.stride, count, rows.stride}, dim_, padded_, block.data(), total);
    if constexpr (std::is_same_v<Real, float>) {
      AddFloatTiles(block.data(), count, padded_, sum_.data());
    } else if (weights == nullptr) {
      AddDoubleTiles(block.data(), block.data(), count, padded_, sum_.data());
    } else {
      for (int64_t t = 0; t < count; ++t) {
        const double weight = weights[begin + t];
        const Real* row = block.data() + t * padded_;
        double* out = weighted.data() + t * padded_;
        for (int64_t c = 0; c < padded_; ++c) out[c] = weight * row[c];
      }
      AddDoubleTiles(weighted.data(), block.data(), count, padded_, sum_.data());
    }
  }
}

void SecondMomentSum::Add(StridedRows<float> rows) { AddBlocks<float>(rows, nullptr); }
void SecondMomentSum::Add(StridedRows<BFloat16> rows) { AddBlocks<double>(rows, nullptr); }
void SecondMomentSum::Add(StridedRows<double> rows) { AddBlocks<double>(rows, nullptr); }
void SecondMomentSum::AddWeighted(StridedRows<float> rows, const double* weights) {
  AddBlocks<double>(rows, weights);
}
void SecondMomentSum::AddWeighted(StridedRows<BFloat16> rows, const double* weights) {
  AddBlocks<double>(rows, weights);
}

void SecondMomentSum::StoreMatrix(double* out) const {
  for (int64_t i = 0; i < dim_; ++i) {
    for (int64_t j = 0; j < dim_; ++j) {
      out[i * dim_ + j] = sum_[static_cast<size_t>(std::min(i, j) * padded_ + std::max(i, j))];
    }
  }
}

}  // namespace oscar
