// The moments of one layer, summed over sequences. Internal to the module: this header shows
// LibTorch types. The one implementation: the runner and RowObserver both feed it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "oscar/stats/moments.h"

namespace oscar {

// Queries, keys, values and attention outputs of one sequence, [T, heads, dim], contiguous, on one
// device. q, k, v have one type (float32 or bfloat16); o is float32 or float64, or undefined when
// no moment needs it.
struct AttentionTensors {
  at::Tensor q, k, v, o;
};

class MomentAccumulator {
 public:
  MomentAccumulator(int layer, const LayerShape& shape, const std::vector<Moment>& moments);
  ~MomentAccumulator();

  // Keeps a reference to k and v until Finish() when `sst` is asked for: their memory must stay.
  // Throws Error(kNumeric) naming layer, sequence, tensor and token when a value is not finite.
  void Add(int64_t sequence, const AttentionTensors& rows);
  // Second pass over the kept keys and values for `sst`. Call once.
  LayerMoments Finish();

  // True when one of `moments` is made of attention outputs.
  static bool NeedsOutputs(const std::vector<Moment>& moments);
  // True when one of `moments` needs a second pass over keys and values.
  static bool NeedsSecondPass(const std::vector<Moment>& moments);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace oscar
