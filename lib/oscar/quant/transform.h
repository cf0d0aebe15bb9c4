// Linear maps of rows, and rows rotated once to be quantised many times.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/core/view.h"
#include "oscar/quant/scheme.h"

namespace oscar {

// The normalised (block) Hadamard transform of core/hadamard.h.
Transform HadamardTransform(int64_t dim);

// heads 0: one [dim, dim] for all heads; otherwise [heads, dim, dim]. Throws Error(kFormat) when
// `rotation` has another size.
Transform RotationTransform(const std::vector<float>& rotation, int64_t heads, int64_t dim);

// Every entry of the matrices rounded to bfloat16, as engines load them.
Transform RoundedToBFloat16(Transform transform);

// Throws Error(kMismatch) naming the sizes when `transform` does not fit rows of `heads` KV heads
// and `dim` channels.
void CheckFits(const Transform& transform, int64_t heads, int64_t dim);

// Rows x R of one sequence. Clip search evaluates many clip ratios on the same rotated rows: rotate
// once here, then call Reconstruct for each quantiser.
class RotatedRows {
 public:
  // x [tokens, H_kv, D] float32. Errors as for oscar::Reconstruct.
  RotatedRows(const Transform& transform, bool as_served, HeadRows<const float> x, int threads);

  // x_hat [tokens, H_kv, D] = dequantise(quantise(x R)) R^-1, in the original coordinates. With
  // quantiser.bits = 16 the rows only travel there and back.
  void Reconstruct(const QuantiserSpec& quantiser, HeadRows<float> x_hat, int threads) const;

  // Rotated row [D].
  const float* Row(int64_t token, int64_t head) const {
    return rows_.data() + (head * tokens_ + token) * dim_;
  }
  int64_t tokens() const { return tokens_; }
  int64_t heads() const { return heads_; }
  int64_t dim() const { return dim_; }

 private:
  Transform transform_;
  int64_t tokens_, heads_, dim_;
  std::vector<float> rows_;  // [heads, tokens, dim]
};

}  // namespace oscar
