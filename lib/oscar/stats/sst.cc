#include "oscar/stats/sst.h"

#include <fmt/format.h>

#include "oscar/core/error.h"

namespace oscar {
namespace {

// [tokens, dim] of one head, widened.
Matrix HeadMatrix(const HeadRows<const float>& rows, int64_t head) {
  using Strided =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>, 0,
                 Eigen::OuterStride<>>;
  return Strided(rows.At(0, head), rows.tokens, rows.dim,
                 Eigen::OuterStride<>(rows.heads * rows.dim))
      .cast<double>();
}

}  // namespace

std::vector<Matrix> ScoreMatrices(const LayerMoments& moments) {
  const MomentTensor& qq = moments.At(Moment::kQq);
  if (moments.count == 0) throw Error(ErrorCode::kData, "score weights need at least one token");
  const int64_t dim = moments.shape.k_dim;
  const int64_t group = moments.shape.group();
  std::vector<Matrix> scores;
  for (int64_t h = 0; h < moments.shape.kv_heads; ++h) {
    Matrix sum = Matrix::Zero(dim, dim);
    for (int64_t g = 0; g < group; ++g) {
      sum += Eigen::Map<const Matrix>(qq.data.data() + (h * group + g) * dim * dim, dim, dim);
    }
    scores.push_back(sum / (static_cast<double>(moments.count) * static_cast<double>(group)));
  }
  return scores;
}

void AddSst(const std::vector<Matrix>& scores, HeadRows<const float> k, HeadRows<const float> v,
            MomentTensor& sst, MomentTensor& sst_weight) {
  OSCAR_CHECK(k.tokens == v.tokens && k.heads == v.heads);
  OSCAR_CHECK(static_cast<int64_t>(scores.size()) == k.heads);
  if (k.tokens == 0) return;
  for (int64_t h = 0; h < k.heads; ++h) {
    const Matrix keys = HeadMatrix(k, h);
    const Matrix values = HeadMatrix(v, h);
    const Matrix projected = keys * scores[static_cast<size_t>(h)];
    const Eigen::VectorXd weights = projected.cwiseProduct(keys).rowwise().sum();
    Eigen::Map<Matrix> sum(sst.data.data() + h * v.dim * v.dim, v.dim, v.dim);
    sum.noalias() += values.transpose() * (weights.asDiagonal() * values);
    sst_weight.data[static_cast<size_t>(h)] += weights.sum();
  }
}

}  // namespace oscar
