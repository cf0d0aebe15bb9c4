#include "oscar/rotation/clip_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "linalg/random_matrix.h"
#include "oscar/core/error.h"
#include "oscar/linalg/orthogonality.h"
#include "oscar/metrics/attention.h"
#include "oscar/quant/transform.h"

namespace oscar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Refusal(const std::string& grid) {
  try {
    ClipGrid::FromText(grid);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << grid;
  return "";
}

TEST(ClipGrid, ListsRatiosWithoutRoundingDust) {
  EXPECT_THAT(ClipGrid::FromText("0.9:1:0.05").Ratios(), ElementsAre(0.9, 0.95, 1.0));
  EXPECT_THAT(ClipGrid::FromText("0.5:0.5:0.1").Ratios(), ElementsAre(0.5));
  EXPECT_THAT(ClipGrid::FromText("0.90:0.99:0.05").Ratios(), ElementsAre(0.9, 0.95));
  const std::vector<double> ratios = ClipGrid::FromText("0.7:1.0:0.01").Ratios();
  ASSERT_EQ(ratios.size(), 31U);
  EXPECT_EQ(ratios[23], 0.93);
  EXPECT_EQ(ratios.back(), 1.0);
}

TEST(ClipGrid, RefusesWhatIsNoGrid) {
  EXPECT_THAT(Refusal(""), HasSubstr("three numbers"));
  EXPECT_THAT(Refusal("0.8:1.0"), HasSubstr("three numbers"));
  EXPECT_THAT(Refusal("0.8:1.0:0.1:2"), HasSubstr("three numbers"));
  EXPECT_THAT(Refusal("a:1.0:0.1"), HasSubstr("three numbers"));
  EXPECT_THAT(Refusal("0.8:1.0:"), HasSubstr("three numbers"));
  EXPECT_THAT(Refusal("0:1:0.1"), HasSubstr("out of range"));
  EXPECT_THAT(Refusal("-0.5:1:0.1"), HasSubstr("out of range"));
  EXPECT_THAT(Refusal("0.9:0.8:0.1"), HasSubstr("out of range"));
  EXPECT_THAT(Refusal("0.9:1.1:0.1"), HasSubstr("out of range"));
  EXPECT_THAT(Refusal("nan:1:0.1"), HasSubstr("out of range"));
  EXPECT_THAT(Refusal("0.9:1:0"), HasSubstr("step"));
  EXPECT_THAT(Refusal("0.9:1:nan"), HasSubstr("step"));
  EXPECT_THAT(Refusal("0.1:1:0.0001"), HasSubstr("1000"));
}

TEST(ClipCurve, BestIsTheLeastLossAndTheLargestOfEqualRatios) {
  EXPECT_EQ((ClipCurve{{0.8, 0.9, 1.0}, {3, 1, 2}}.Best()), 1U);
  EXPECT_EQ((ClipCurve{{0.8, 0.9, 1.0}, {1, 1, 2}}.Best()), 1U);
  EXPECT_EQ((ClipCurve{{0.8}, {7}}.Best()), 0U);
}

TEST(SearchClip, EvaluatesEveryOrderStatisticOnceAtAnyThreadCount) {
  const std::vector<double> ratios = ClipGrid{0.8, 1, 0.01}.Ratios();
  for (const int threads : {1, 2, 7}) {
    std::atomic<int> calls{0};
    const ClipCurve curve = SearchClip(
        ratios, 64,
        [&](double ratio) {
          ++calls;
          return std::min(std::floor(ratio * 64), 63.0);
        },
        threads);
    // 51 .. 63, and ratio 1 means the largest, 63 too.
    EXPECT_EQ(calls, 13);
    for (size_t i = 0; i < ratios.size(); ++i) {
      EXPECT_EQ(curve.losses[i], std::min(std::floor(ratios[i] * 64), 63.0)) << ratios[i];
    }
  }
  EXPECT_THROW(SearchClip(
                   ratios, 64, [](double) { return std::nan(""); }, 1),
               Error);
}

TEST(DescendClip, FindsTheMinimumOfAValleyFromEitherSide) {
  const std::vector<double> ratios = ClipGrid{0.7, 1, 0.01}.Ratios();
  const auto valley = [](double ratio) {
    const double index = std::min(std::floor(ratio * 64), 63.0);
    return (index - 55) * (index - 55);
  };
  for (const size_t start : {size_t{0}, size_t{10}, size_t{16}, size_t{20}, ratios.size() - 1}) {
    EXPECT_EQ(DescendClip(ratios, 64, start, valley), 0) << start;
  }
}

TEST(SingleClip, MinimisesTheMeanOverLayers) {
  const std::map<int, ClipCurve> layers = {{3, {{0.8, 0.9, 1.0}, {1, 2, 9}}},
                                           {7, {{0.8, 0.9, 1.0}, {8, 4, 2}}}};
  const SingleClip single = BestSingleClip(layers);
  EXPECT_EQ(single.ratio, 0.9);
  EXPECT_EQ(single.loss, 3);
  EXPECT_EQ(single.per_layer_loss, 1.5);
}

// A layer of random rows with an outlier channel, rotations per KV head.
class ClipProblemTest : public testing::Test {
 protected:
  ClipProblemTest() {
    shape_.q_heads = 4;
    shape_.kv_heads = 2;
    shape_.k_dim = 16;
    shape_.v_dim = 8;
    shape_.softmax_scale = 0.3;
    settings_.windows = {3, 5};
    settings_.queries = 6;
    for (const int64_t tokens : {24, 31}) {
      SequenceRows rows;
      rows.tokens = tokens;
      rows.q = Normal(tokens * 4 * 16);
      rows.k = Normal(tokens * 2 * 16);
      rows.v = Normal(tokens * 2 * 8);
      for (size_t i = 0; i < rows.k.size(); i += 16) rows.k[i + 3] *= 6;
      sequences_.push_back(rows);
    }
    for (uint64_t head = 0; head < 2; ++head) {
      key_.matrices.push_back(RoundToFloat(test::RandomOrthogonal(16, head)));
      value_.matrices.push_back(RoundToFloat(test::RandomOrthogonal(8, 10 + head)));
    }
    key_.dim = 16;
    value_.dim = 8;
  }

  std::vector<float> Normal(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& x : values) x = static_cast<float>(random_.Normal());
    return values;
  }

  // The public formula by sorting, float32 as the kernels compute it.
  static void Quantise(std::vector<float>& row, double ratio) {
    std::vector<float> sorted = row;
    for (float& x : sorted) x = std::abs(x);
    std::sort(sorted.begin(), sorted.end());
    const auto dim = static_cast<double>(row.size());
    const float limit = sorted[static_cast<size_t>(std::min(std::floor(ratio * dim), dim - 1))];
    for (float& x : row) x = std::clamp(x, -limit, limit);
    const auto [low, high] = std::minmax_element(row.begin(), row.end());
    const float scale = std::max(*high - *low, 1e-8F) / 3.0F;
    const float zero = -*low / scale;
    for (float& x : row) x = (std::trunc(x / scale + zero + 0.5F) - zero) * scale;
  }

  // dequantise(quantise(x R)) R^T of one row, back in the original coordinates.
  static std::vector<double> Restore(const float* row, const std::vector<float>& r, double ratio) {
    const auto dim = static_cast<size_t>(std::lround(std::sqrt(static_cast<double>(r.size()))));
    std::vector<float> rotated(dim);
    for (size_t j = 0; j < dim; ++j) {
      double sum = 0;
      for (size_t i = 0; i < dim; ++i) {
        sum += static_cast<double>(row[i]) * static_cast<double>(r[i * dim + j]);
      }
      rotated[j] = static_cast<float>(sum);
    }
    Quantise(rotated, ratio);
    std::vector<double> back(dim, 0);
    for (size_t i = 0; i < dim; ++i) {
      for (size_t j = 0; j < dim; ++j) {
        back[i] += static_cast<double>(rotated[j]) * static_cast<double>(r[i * dim + j]);
      }
    }
    return back;
  }

  // Both losses straight from their definitions in float64.
  void Reference(double ratio, double& key_loss, double& value_loss) const {
    double kl_sum = 0, error = 0, energy = 0;
    int64_t rows = 0;
    for (const SequenceRows& s : sequences_) {
      for (const int64_t i : ChooseQueries(s.tokens, settings_.queries, settings_.windows, true)) {
        for (int64_t h = 0; h < shape_.q_heads; ++h) {
          const int64_t kv = h / 2;
          const float* const q = s.q.data() + (i * 4 + h) * 16;
          std::vector<double> logits, changed;
          std::vector<std::vector<double>> v, v_hat;
          for (int64_t j = 0; j <= i; ++j) {
            const bool quantised = settings_.windows.Quantised(i, j);
            const float* const k_row = s.k.data() + (j * 2 + kv) * 16;
            const float* const v_row = s.v.data() + (j * 2 + kv) * 8;
            std::vector<double> k(k_row, k_row + 16);
            v.emplace_back(v_row, v_row + 8);
            v_hat.push_back(v.back());
            logits.push_back(Dot(q, k) * 0.3);
            if (quantised) {
              k = Restore(k_row, key_.ForHead(kv), ratio);
              v_hat.back() = Restore(v_row, value_.ForHead(kv), ratio);
            }
            changed.push_back(Dot(q, k) * 0.3);
          }
          const double log_z = LogSumExp(logits), log_z_hat = LogSumExp(changed);
          std::vector<double> out(8, 0), difference(8, 0);
          for (size_t j = 0; j < logits.size(); ++j) {
            const double p = std::exp(logits[j] - log_z);
            kl_sum += p * ((logits[j] - log_z) - (changed[j] - log_z_hat));
            for (size_t d = 0; d < 8; ++d) {
              out[d] += p * v[j][d];
              difference[d] += p * (v_hat[j][d] - v[j][d]);
            }
          }
          for (size_t d = 0; d < 8; ++d) {
            energy += out[d] * out[d];
            error += difference[d] * difference[d];
          }
          ++rows;
        }
      }
    }
    key_loss = kl_sum / static_cast<double>(rows);
    value_loss = std::sqrt(error / energy);
  }

  static double Dot(const float* q, const std::vector<double>& k) {
    double sum = 0;
    for (size_t d = 0; d < k.size(); ++d) sum += static_cast<double>(q[d]) * k[d];
    return sum;
  }
  static double LogSumExp(const std::vector<double>& x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double value : x) sum += std::exp(value - top);
    return top + std::log(sum);
  }

  Random random_{12345};
  LayerShape shape_;
  ClipSearchSettings settings_;
  std::vector<SequenceRows> sequences_;
  Transform key_, value_;
};

TEST_F(ClipProblemTest, LossesEqualTheirDefinitionsInTheOriginalCoordinates) {
  const ClipProblem problem(shape_, sequences_, key_, value_, settings_, 1);
  for (const double ratio : {0.5, 0.75, 0.9, 0.96, 1.0}) {
    double key_loss = 0, value_loss = 0;
    Reference(ratio, key_loss, value_loss);
    ASSERT_GT(key_loss, 1e-3);
    // Rotations are orthogonal to 1e-7, logits (below 30 here) are float32 sums: about 1e-5 of an
    // error of order 1. A code that flips by such rounding would move one key by a whole level;
    // none does for these rows.
    EXPECT_NEAR(problem.KeyLoss(ratio), key_loss, 1e-4 * key_loss) << ratio;
    EXPECT_NEAR(problem.ValueLoss(ratio), value_loss, 1e-4 * value_loss) << ratio;
  }
}

TEST_F(ClipProblemTest, RespectsFlushes) {
  const ClipProblem plain(shape_, sequences_, key_, value_, settings_, 1);
  settings_.windows.flush = 8;
  const ClipProblem problem(shape_, sequences_, key_, value_, settings_, 1);
  double key_loss = 0, value_loss = 0;
  Reference(0.9, key_loss, value_loss);
  EXPECT_NEAR(problem.KeyLoss(0.9), key_loss, 1e-4 * key_loss);
  EXPECT_NEAR(problem.ValueLoss(0.9), value_loss, 1e-4 * value_loss);
  EXPECT_NE(problem.KeyLoss(0.9), plain.KeyLoss(0.9));
}

TEST_F(ClipProblemTest, GivesTheSameBitsAtAnyThreadCount) {
  const ClipProblem one(shape_, sequences_, key_, value_, settings_, 1);
  const ClipProblem three(shape_, sequences_, key_, value_, settings_, 3);
  EXPECT_EQ(one.KeyLoss(0.9), three.KeyLoss(0.9));
  EXPECT_EQ(one.ValueLoss(0.9), three.ValueLoss(0.9));
}

TEST_F(ClipProblemTest, SharedRotationServesAllHeads) {
  Transform shared, twice;
  shared.dim = twice.dim = 16;
  shared.matrices = {key_.matrices[0]};
  twice.matrices = {key_.matrices[0], key_.matrices[0]};
  const ClipProblem a(shape_, sequences_, shared, value_, settings_, 1);
  const ClipProblem b(shape_, sequences_, twice, value_, settings_, 1);
  EXPECT_EQ(a.KeyLoss(0.9), b.KeyLoss(0.9));
}

TEST_F(ClipProblemTest, RefusesWhatDoesNotFit) {
  sequences_[1].tokens = 8;  // sink + recent
  EXPECT_THROW(ClipProblem(shape_, sequences_, key_, value_, settings_, 1), Error);
  sequences_.pop_back();
  Transform wrong = key_;
  wrong.dim = 8;
  EXPECT_THROW(ClipProblem(shape_, sequences_, wrong, value_, settings_, 1), Error);
  settings_.quantiser.group_size = 3;
  EXPECT_THROW(ClipProblem(shape_, sequences_, key_, value_, settings_, 1), Error);
}

}  // namespace
}  // namespace oscar
