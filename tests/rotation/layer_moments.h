// Moments of made-up layers for tests.
#pragma once

#include <vector>

#include "linalg/random_matrix.h"
#include "oscar/stats/moments.h"

namespace oscar::test {

inline LayerShape SmallShape(int64_t q_heads, int64_t kv_heads, int64_t k_dim, int64_t v_dim) {
  LayerShape shape;
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.k_dim = k_dim;
  shape.v_dim = v_dim;
  shape.softmax_scale = 0.125;
  return shape;
}

// A moment [matrices.size(), D, D] whose sums over `count` tokens have these means.
inline MomentTensor FromMeans(const std::vector<Matrix>& means, uint64_t count) {
  MomentTensor tensor;
  const int64_t dim = means.front().rows();
  tensor.shape = {static_cast<int64_t>(means.size()), dim, dim};
  for (const Matrix& mean : means) {
    const Matrix sum = mean * static_cast<double>(count);
    tensor.data.insert(tensor.data.end(), sum.data(), sum.data() + sum.size());
  }
  return tensor;
}

// One query head per KV head; queries and keys (and values and outputs) of head h have the second
// moment means[h].
inline LayerMoments LayerWithMeans(const std::vector<Matrix>& means, uint64_t count) {
  LayerMoments moments;
  const auto heads = static_cast<int64_t>(means.size());
  moments.shape = SmallShape(heads, heads, means.front().rows(), means.front().rows());
  moments.count = count;
  for (const Moment id : {Moment::kQq, Moment::kKk, Moment::kVv, Moment::kOo, Moment::kSst}) {
    moments.sums[id] = FromMeans(means, count);
  }
  MomentTensor& weight = moments.sums[Moment::kSstWeight];
  weight.shape = {heads};
  weight.data.assign(means.size(), static_cast<double>(count));
  return moments;
}

// Second moments of `tokens` normal rows per head, from the rows themselves.
inline LayerMoments LayerFromRows(int64_t heads, int64_t dim, int64_t tokens, uint64_t seed) {
  std::vector<Matrix> means;
  for (int64_t h = 0; h < heads; ++h) {
    const Matrix rows = RandomNormal(tokens, dim, seed + static_cast<uint64_t>(h));
    const Matrix gram = rows.transpose() * rows / static_cast<double>(tokens);
    means.push_back(0.5 * (gram + gram.transpose()));
  }
  return LayerWithMeans(means, static_cast<uint64_t>(tokens));
}

}  // namespace oscar::test
