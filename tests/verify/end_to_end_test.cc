// A scheme as the runner's cache, and the metrics of docs/metrics.md, against the formulas in
// float64 on a small model.
#include "oscar/verify/end_to_end.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "model/compare.h"
#include "model/fake_weights.h"
#include "model/naive_model.h"
#include "model/row_keeper.h"
#include "oscar/core/error.h"
#include "oscar/model/runner.h"
#include "oscar/quant/methods.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

using test::FakeWeights;
using testing::HasSubstr;

// As for the runner itself (tests/model/runner_test.cc): float32 activations of two layers.
constexpr double kTolerance = 4e-5;
constexpr Windows kWindows{4, 16};

// x R moves channel d to channel (d + shift) mod D and turns the sign of every third: a rotation
// whose products are exact, so that rounding to bfloat16 is all that happens to a row.
std::vector<float> SignedShift(int64_t dim, int64_t shift) {
  std::vector<float> matrix(static_cast<size_t>(dim * dim));
  for (int64_t d = 0; d < dim; ++d) {
    matrix[static_cast<size_t>(d * dim + (d + shift) % dim)] = d % 3 == 0 ? -1.0F : 1.0F;
  }
  return matrix;
}

// The public INT2 of one row of one head, rotated and rounded first, written down once more
// (method.md 5.1): s = (max - min) / 3, z = -min / s, q = floor(x / s + z + 1/2), x_hat = (q - z)
// s.
std::vector<double> QuantisedRow(const float* x, int64_t dim, int64_t shift) {
  std::vector<float> turned(static_cast<size_t>(dim));
  const auto sign = [](int64_t d) { return d % 3 == 0 ? -1.0F : 1.0F; };
  for (int64_t d = 0; d < dim; ++d) {
    turned[static_cast<size_t>((d + shift) % dim)] = sign(d) * ToFloat(ToBFloat16(x[d]));
  }
  const auto [low, high] = std::minmax_element(turned.begin(), turned.end());
  const float s = std::max(*high - *low, 1e-8F) / 3;
  const float z = -*low / s;
  std::vector<double> out;
  for (int64_t d = 0; d < dim; ++d) {
    const float y = turned[static_cast<size_t>((d + shift) % dim)];
    const float ratio = y / s;
    const float code = std::floor(ratio + z + 0.5F);
    out.push_back(double{sign(d)} * double{(code - z) * s});
  }
  return out;
}

struct Shifts {
  int64_t key = 5, value = 7;
};

// Rows of the runner itself: a value that rounds to the other side in float64 would be no error.
test::NaiveCache ServedCache(const test::RowKeeper::Rows& rows, const Windows& windows,
                             bool window_rows) {
  using test::KeptRows;
  const auto fill = [](const KeptRows& x, test::Rows& out, const auto& row) {
    for (int64_t t = 0; t < x.tokens; ++t) {
      for (int64_t h = 0; h < x.heads; ++h) {
        const std::vector<double> values = row(x.view().At(t, h));
        std::copy(values.begin(), values.end(), out[static_cast<size_t>(t)].begin() + h * x.dim);
      }
    }
  };
  test::NaiveCache cache;
  cache.use = [windows](int64_t i, int64_t j) { return windows.Quantised(i, j); };
  cache.apply = [&rows, fill](const test::Rows&, const test::Rows&, test::Rows& k_hat,
                              test::Rows& v_hat) {
    const auto quantised = [](int64_t dim, int64_t shift) {
      return [dim, shift](const float* x) { return QuantisedRow(x, dim, shift); };
    };
    fill(rows.k, k_hat, quantised(rows.k.dim, Shifts().key));
    fill(rows.v, v_hat, quantised(rows.v.dim, Shifts().value));
  };
  if (!window_rows) return cache;
  cache.window = [&rows, fill](const test::Rows&, const test::Rows&, test::Rows& k, test::Rows& v) {
    const auto rounded = [](int64_t dim) {
      return [dim](const float* x) {
        std::vector<double> out;
        for (int64_t d = 0; d < dim; ++d) out.push_back(double{ToFloat(ToBFloat16(x[d]))});
        return out;
      };
    };
    fill(rows.k, k, rounded(rows.k.dim));
    fill(rows.v, v, rounded(rows.v.dim));
  };
  return cache;
}

KvScheme ServedScheme(const ModelConfig& config, bool as_served = true) {
  MethodSettings settings;
  settings.windows = kWindows;
  settings.as_served = as_served;
  settings.key_clip = settings.value_clip = 0;
  ModelRotations rotations;
  std::map<int, LayerShape> shapes;
  for (int layer = 0; layer < config.layers; ++layer) {
    shapes[layer] = config.ShapeOfLayer(layer);
    const int64_t dim = config.head_dim;
    rotations.key[layer] = {0, dim, SignedShift(dim, Shifts().key), std::nullopt};
    rotations.value[layer] = {0, dim, SignedShift(dim, Shifts().value), std::nullopt};
  }
  return BuildScheme(MethodFromName("oscar"), shapes, settings, &rotations);
}

class EndToEndTest : public testing::Test {
 protected:
  RunContext Context() { return {&progress_, &cancel_, 2}; }

  // Hidden states after every layer, [layer][sequence], of the exact run or with the cache.
  std::vector<std::vector<test::Rows>> Naive(const test::RowKeeper* keeper, bool window_rows) {
    const test::NaiveModel naive(weights_);
    std::vector<std::vector<test::Rows>> hidden(2);
    for (size_t s = 0; s < sequences_.size(); ++s) {
      test::Rows rows = naive.Embed(sequences_[s]);
      for (int layer = 0; layer < 2; ++layer) {
        if (keeper == nullptr) {
          rows = naive.Layer(layer, rows, nullptr);
        } else {
          const auto& kept = keeper->rows.at({layer, static_cast<int64_t>(s)});
          const test::NaiveCache cache = ServedCache(kept, kWindows, window_rows);
          rows = naive.Layer(layer, rows, &cache);
        }
        hidden[static_cast<size_t>(layer)].push_back(rows);
      }
    }
    return hidden;
  }

  // The runner with one tapped stream, through all layers.
  std::unique_ptr<ModelRunner> Run(SchemeTap& tap, test::RowKeeper& keeper) {
    auto runner = std::make_unique<ModelRunner>(weights_, sequences_, "cpu", Context());
    runner->AddStream(&tap, kWindows, true);
    runner->AddSink(&keeper, 1);
    while (runner->next_layer() < 2) runner->RunLayer(nullptr, nullptr);
    return runner;
  }

  NullProgress progress_;
  CancelToken cancel_;
  FakeWeights weights_{test::SmallConfig()};
  // The second is too short to have a position that predicts a token and sees a quantised key.
  std::vector<std::vector<int32_t>> sequences_ = test::RandomSequences({60, 21, 90}, 71, 3);
};

double WorstDifference(const float* actual, const std::vector<test::Rows>& expected) {
  test::WorstError worst;
  for (const test::Rows& sequence : expected) {
    for (const test::Row& row : sequence) {
      for (const double x : row) worst.Add(*actual++, x);
    }
  }
  return worst.relative();
}

TEST_F(EndToEndTest, WindowsAreRoundedAsServed) {
  const KvScheme scheme = ServedScheme(weights_.config());
  SchemeTap tap(scheme, 2);
  EXPECT_TRUE(tap.ChangesWindows(0));
  test::RowKeeper keeper;
  const auto runner = Run(tap, keeper);
  EXPECT_LE(WorstDifference(runner->Hidden(1), Naive(&keeper, true)[1]), kTolerance);
  // The test would see exact windows.
  EXPECT_GT(WorstDifference(runner->Hidden(1), Naive(&keeper, false)[1]), 5 * kTolerance);

  // Not as served, windows are the model's own rows.
  const KvScheme exact = ServedScheme(weights_.config(), false);
  SchemeTap exact_tap(exact, 2);
  EXPECT_FALSE(exact_tap.ChangesWindows(0));
  // Without a rotation there is nothing to round.
  MethodSettings settings;
  settings.as_served = true;
  const KvScheme naive = BuildScheme(MethodFromName("naive"),
                                     {{0, weights_.config().ShapeOfLayer(0)}}, settings, nullptr);
  EXPECT_FALSE(SchemeTap(naive, 2).ChangesWindows(0));
}

test::Row LogProbabilities(const test::NaiveModel& naive, const test::Row& hidden) {
  test::Row logits = naive.Logits(hidden);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x);
  for (double& x : logits) x -= std::log(sum);
  return logits;
}

TEST_F(EndToEndTest, MetricsAreWhatTheDocumentSays) {
  const KvScheme scheme = ServedScheme(weights_.config());
  const std::vector<EndToEndResult> results =
      RunEndToEnd(weights_, sequences_, {scheme}, "cpu", Context());
  ASSERT_EQ(results.size(), 1U);
  SchemeTap tap(scheme, 2);
  test::RowKeeper keeper;
  Run(tap, keeper);
  const auto exact = Naive(nullptr, false), changed = Naive(&keeper, true);
  const test::NaiveModel naive(weights_);
  size_t sample = 0;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const size_t tokens = sequences_[s].size();
    const size_t first = 20;  // sink 4 + recent 16
    if (tokens < first + 2) continue;
    for (size_t layer = 0; layer < 2; ++layer) {
      double mean = 0;
      for (size_t t = 0; t < tokens; ++t) {
        double error = 0, norm = 0;
        for (size_t i = 0; i < exact[layer][s][t].size(); ++i) {
          error += std::pow(changed[layer][s][t][i] - exact[layer][s][t][i], 2);
          norm += std::pow(exact[layer][s][t][i], 2);
        }
        mean += error / norm / static_cast<double>(tokens);
      }
      EXPECT_GT(mean, 1e-4);
      EXPECT_NEAR(results[0].hidden_error[layer].at(sample), std::sqrt(mean), kTolerance);
    }
    double kl = 0, agreement = 0, nll = 0;
    for (size_t t = first; t + 1 < tokens; ++t) {
      const test::Row p = LogProbabilities(naive, exact[1][s][t]);
      const test::Row q = LogProbabilities(naive, changed[1][s][t]);
      for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      const auto next = static_cast<size_t>(sequences_[s][t + 1]);
      nll += p[next] - q[next];
      // Neighbouring ids share their logit in this model.
      const auto top = [](const test::Row& x) {
        return (std::max_element(x.begin(), x.end()) - x.begin()) / 2;
      };
      agreement += top(p) == top(q) ? 1 : 0;
    }
    const auto positions = static_cast<double>(tokens - 1 - first);
    EXPECT_GT(kl / positions, 1e-4);
    EXPECT_NEAR(results[0].next_token_kl.at(sample), kl / positions, 1e-4);
    EXPECT_NEAR(results[0].perplexity_ratio.at(sample), std::exp(nll / positions), 1e-4);
    EXPECT_DOUBLE_EQ(results[0].top1_agreement.at(sample), agreement / positions);
    ++sample;
  }
  EXPECT_EQ(sample, 2U);
  EXPECT_EQ(results[0].hidden_error[0].size(), 2U);
  EXPECT_EQ(results[0].hidden_error[1].size(), 2U);
  EXPECT_EQ(results[0].next_token_kl.size(), 2U);
}

TEST_F(EndToEndTest, AnUnchangedCacheGivesExactlyNothing) {
  KvScheme scheme = ServedScheme(weights_.config(), false);
  for (auto& [layer, side] : scheme.layers) side = {};
  for (auto& [layer, side] : scheme.layers)
    side.key.quantiser.bits = side.value.quantiser.bits = 16;
  const EndToEndResult result =
      RunEndToEnd(weights_, sequences_, {scheme}, "cpu", Context()).front();
  EXPECT_THAT(result.hidden_error[1], testing::Each(0.0));
  EXPECT_THAT(result.next_token_kl, testing::Each(0.0));
  EXPECT_THAT(result.top1_agreement, testing::Each(1.0));
  EXPECT_THAT(result.perplexity_ratio, testing::Each(1.0));
}

TEST_F(EndToEndTest, RefusesRunsInWhichNothingIsQuantised) {
  KvScheme scheme = ServedScheme(weights_.config());
  const auto refusal = [&](const ModelWeights& weights) {
    return test::Thrown([&] { RunEndToEnd(weights, sequences_, {scheme}, "cpu", Context()); });
  };
  scheme.windows = {64, 256};
  EXPECT_EQ(refusal(weights_).code(), ErrorCode::kData);
  EXPECT_THAT(refusal(weights_).what(), HasSubstr("sink 64 and recent 256"));
  EXPECT_THAT(refusal(weights_).what(), HasSubstr("90 tokens"));
  // Every layer's sliding window is recent.
  ModelConfig config = test::SmallConfig();
  config.sliding_window = 16;
  config.layer_uses_window.assign(2, true);
  scheme.windows = kWindows;
  const Error error = refusal(FakeWeights(config));
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_THAT(error.what(), HasSubstr("sliding window of 16 tokens of layer 0"));
  // One layer sees further.
  config.layer_uses_window[0] = false;
  EXPECT_NO_THROW(RunEndToEnd(FakeWeights(config), sequences_, {scheme}, "cpu", Context()));
}

}  // namespace
}  // namespace oscar
