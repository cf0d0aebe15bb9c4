// What DecodeReference and DecodeTwin share: rows of the cache, a softmax in progress, the output.
// Plain C++.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "oscar/cuda/decode.h"
#include "oscar/cuda/plan.h"

namespace oscar {

// One (token, head) of the quantised tier.
struct QuantisedRow {
  std::vector<float> codes;        // [dim]
  std::vector<float> scale, zero;  // [groups]
};

class CacheReader {
 public:
  CacheReader(const CacheShape& shape, const DecodeInputs& in) : shape_(shape), in_(in) {}

  // The reconstruction of row (token, head) of keys or values of a tier.
  void Row(Tier tier, int64_t token, int64_t head, bool value, std::vector<double>& x) const;
  QuantisedRow Quantised(int64_t token, int64_t head, bool value) const;

 private:
  const CacheShape& shape_;
  const DecodeInputs& in_;
};

// A softmax in progress: maximum, sum of exponentials, weighted sum of values.
struct RunningSoftmax {
  explicit RunningSoftmax(int64_t dim) : o(static_cast<size_t>(dim)) {}
  void Add(double score, const std::vector<double>& value);
  std::vector<double> o;
  double max = -std::numeric_limits<double>::infinity();
  double sum = 0;
};

// Throws Error on what neither takes: a shape, a slot list, missing tensors.
void CheckTwin(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out);

// Stores row `row` = request * query heads + head: the output, rotated back where that is wanted,
// and the log-sum-exp.
void StoreOutput(const DecodeShape& shape, const DecodeInputs& in, const DecodeOutputs& out,
                 int64_t row, std::vector<double> o, double lse);

}  // namespace oscar
