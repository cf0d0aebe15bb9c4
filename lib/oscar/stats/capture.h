// What an observer takes from one attention layer.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/core/dtype.h"
#include "oscar/stats/moments.h"

namespace oscar {

// What to capture. Moments always cover every token.
struct CaptureSpec {
  std::vector<Moment> moments;  // from ParseMomentList
  int64_t row_sequences = 0;    // rows of the first so many sequences are kept
};

// One captured layer.
struct LayerCapture {
  int layer = 0;  // the model's global layer number
  LayerMoments moments;
  // Rows of the sequences that keep rows, in sequence order: q [tokens, H_q, D_k],
  // k [tokens, H_kv, D_k], v [tokens, H_kv, D_v], rounded to bfloat16.
  std::vector<BFloat16> q, k, v;
  // Output projection [hidden, H_q * D_v] bfloat16, empty when unknown.
  std::vector<BFloat16> o_proj;
};

}  // namespace oscar
