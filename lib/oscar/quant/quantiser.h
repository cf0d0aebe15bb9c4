// The INT2 quantiser of rows (method.md 4 and 5), bit for bit as the public kernels compute it in
// float32 with IEEE division: this is the reference that other implementations are compared with.
//
// Input rows must be finite. What the kernels leave undefined is defined here:
//   - a code is limited to 0..3 before it is packed, so that no code can bleed into a neighbour;
//   - scale and zero are stored as computed, even where they overflow the storage type (constant
//     rows in float16, Lloyd-Max rows near 1e30); on the way back a non-finite scale or zero counts
//     as the largest finite number of the storage type, an undefined one as 0, and the product is
//     limited to float32's range. A reconstruction is therefore always finite.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/core/view.h"
#include "oscar/quant/scheme.h"

namespace oscar {

// Index of the clip threshold among the ascending |x| of a row of `dim`: -1 (off) for ratio <= 0,
// else min(floor(ratio * dim), dim - 1). A ratio of 1 therefore clips nothing in the exact mode.
int64_t ClipIndex(double ratio, int64_t dim);

// The exact order statistic: element `index` (from 0) of the ascending |row|. Every |row| finite.
float OrderStatistic(const float* row, int64_t dim, int64_t index);

// Threshold of the public decode flush: floor(log2 dim) bisection steps on [0, max |row|], looking
// for at most dim - index values above it. Below 64 channels the flush sorts, and so does this.
float BisectedThreshold(const float* row, int64_t dim, int64_t index);

// Rows as a cache stores them.
struct QuantisedRows {
  int64_t rows = 0, dim = 0, groups = 0;
  ScaleType scale_type = ScaleType::kF32;
  std::vector<uint8_t> packed;  // [rows, dim / 4], quarter split (packing.h)
  std::vector<float> scale;     // [rows, groups], rounded to scale_type and widened
  std::vector<float> zero;      // [rows, groups]
};

// x [rows, dim], already rotated. Per group of G channels
//   s = max(max - min, 1e-8) / 3,  z = (0 - min) / s,  code = trunc(x / s + z + 1/2)
// or the Lloyd-Max mode of method.md 5.5; the codes use the float32 s and z, whatever their
// storage. Throws Error(kUsage) when `spec` does not fit (see Validate) or is no 2-bit quantiser,
// Error(kNumeric) naming the row when a value is not finite.
QuantisedRows Quantise(MatrixView<const float> x, const QuantiserSpec& spec, int threads);

// x_hat = (code - z) s in float32, with the stored s and z.
void Dequantise(const QuantisedRows& stored, MatrixView<float> x_hat);

// Quantises and reconstructs one row in place without packing: what Dequantise(Quantise(row))
// gives, bit for bit. Reused for many rows: holds the resolved sizes and the scratch memory.
class RowQuantiser {
 public:
  // Throws Error(kUsage) when `spec` does not fit rows of `dim` channels.
  RowQuantiser(const QuantiserSpec& spec, int64_t dim);

  // Codes [dim], scale and zero [groups] in float32, not yet rounded to the storage type.
  void Encode(const float* row, int32_t* codes, float* scale, float* zero);
  void Reconstruct(float* row);

  int64_t groups() const { return dim_ / group_; }

 private:
  void EncodeMinMax(const float* row, int32_t* codes, float* scale, float* zero) const;
  void EncodeLloydMax(const float* row, int32_t* codes, float* scale, float* zero) const;

  QuantiserSpec spec_;
  int64_t dim_, group_, clip_index_;
  std::vector<float> clipped_, scale_, zero_;
  std::vector<int32_t> codes_;
};

// Rounds to the storage type and widens again; overflow becomes infinity.
float RoundToScaleType(float value, ScaleType type);

// True when every value of the row is finite.
bool AllFinite(const float* row, int64_t dim);

}  // namespace oscar
