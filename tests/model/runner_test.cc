// The runner on small models in memory, against the formulas in float64.
#include "oscar/model/runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/compare.h"
#include "model/fake_weights.h"
#include "model/naive_model.h"
#include "model/row_keeper.h"
#include "oscar/core/error.h"
#include "oscar/model/backend.h"

namespace oscar {
namespace {

using test::FakeWeights;
using test::RandomSequences;
using test::SmallConfig;

// Float32 activations of two layers with sums of up to 53 terms, norms and a softmax over up to 700
// keys, against float64: some hundred roundings of 2^-24 that mostly cancel; RoPE angles are
// float32 products, off by up to 700 * 2^-24 radians. 4e-5 of the largest entry bounds both.
constexpr double kTolerance = 4e-5;

template <typename Function>
Error Thrown(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  throw std::runtime_error("no Error was thrown");
}

class RunnerTest : public testing::Test {
 protected:
  RunContext Context(int threads = 2) { return {&progress_, &cancel_, threads}; }
  ModelRunner Runner(const ModelWeights& weights, std::vector<std::vector<int32_t>> sequences,
                     RunnerOptions options = {}) {
    return {weights, std::move(sequences), "cpu", Context(), options};
  }
  static void RunAll(ModelRunner& runner, const ModelWeights& weights) {
    while (runner.next_layer() < weights.config().layers) runner.RunLayer(nullptr, nullptr);
  }
  static std::vector<float> HiddenOf(const ModelRunner& runner, const ModelWeights& weights,
                                     int stream = 0) {
    const float* data = runner.Hidden(stream);
    return {data, data + runner.total_tokens() * weights.config().hidden};
  }

  NullProgress progress_;
  CancelToken cancel_;
};

void CompareHidden(const ModelRunner& runner, int stream, const std::vector<test::Rows>& expected) {
  test::WorstError worst;
  const float* actual = runner.Hidden(stream);
  for (const test::Rows& sequence : expected) {
    for (const test::Row& row : sequence) {
      for (const double x : row) worst.Add(*actual++, x);
    }
  }
  EXPECT_LE(worst.relative(), kTolerance) << worst.Where();
}

struct Variant {
  const char* name;
  void (*change)(ModelConfig&);
};

class Variants : public RunnerTest, public testing::WithParamInterface<Variant> {
 protected:
  static ModelConfig Config() {
    ModelConfig config = SmallConfig();
    GetParam().change(config);
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Models, Variants,
    testing::Values(Variant{"plain", [](ModelConfig&) {}},
                    Variant{"biases",
                            [](ModelConfig& c) { c.qkv_bias = c.o_bias = c.mlp_bias = true; }},
                    Variant{"qk_norm", [](ModelConfig& c) { c.qk_norm = true; }},
                    Variant{"one_kv_head", [](ModelConfig& c) { c.kv_heads = 1; }},
                    Variant{"every_head_its_own", [](ModelConfig& c) { c.kv_heads = 4; }},
                    Variant{"partial_rope_scaled",
                            [](ModelConfig& c) {
                              c.rope.inv_freq.resize(5);
                              c.rope.attention_factor = 1.25;
                            }},
                    Variant{"sliding_window_in_one_layer",
                            [](ModelConfig& c) {
                              c.sliding_window = 37;
                              c.layer_uses_window[1] = true;
                            }}),
    [](const auto& variant) { return variant.param.name; });

TEST_P(Variants, EveryLayerMatchesTheFormulas) {
  const FakeWeights weights(Config());
  // 1, a few, and one more than two blocks of queries and one of tokens (256, 512).
  const auto sequences = RandomSequences({1, 5, 38, 513}, weights.config().vocab, 2);
  const test::NaiveModel naive(weights);
  std::vector<test::Rows> hidden;
  for (const auto& ids : sequences) hidden.push_back(naive.Embed(ids));
  for (const bool fused : {true, false}) {
    SCOPED_TRACE(fused ? "fused loops" : "ATen operations");
    ModelRunner runner = Runner(weights, sequences, {fused});
    test::RowKeeper keeper;
    runner.AddSink(&keeper);
    std::vector<test::Rows> expected = hidden;
    CompareHidden(runner, 0, expected);
    for (int64_t layer = 0; layer < weights.config().layers; ++layer) {
      runner.RunLayer(nullptr, nullptr);
      for (size_t s = 0; s < sequences.size(); ++s) {
        test::NaiveAttention seen;
        expected[s] = naive.Layer(layer, expected[s], nullptr, &seen);
        const auto& rows = keeper.rows.at({static_cast<int>(layer), static_cast<int64_t>(s)});
        for (const auto& [actual, wanted] :
             {std::pair(&rows.q, &seen.q), std::pair(&rows.k, &seen.k), std::pair(&rows.v, &seen.v),
              std::pair(&rows.o, &seen.o)}) {
          test::WorstError worst;
          auto value = actual->data.begin();
          for (const test::Row& row : *wanted) {
            for (const double x : row) worst.Add(*value++, x);
          }
          EXPECT_EQ(value, actual->data.end());
          EXPECT_LE(worst.relative(), kTolerance) << worst.Where();
        }
      }
      CompareHidden(runner, 0, expected);
    }
    EXPECT_EQ(keeper.begun, 2);
    EXPECT_EQ(keeper.ended, 2);
  }
}

// Rounds keys to multiples of 1/4 and values to multiples of 1/8: an error of the size of INT2's.
class RoundingTap final : public KvTap {
 public:
  void Apply(int, std::span<const int64_t> positions, HeadRows<const float> k,
             HeadRows<const float> v, HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    EXPECT_EQ(static_cast<int64_t>(positions.size()), k.tokens);
    for (size_t t = 0; t < positions.size(); ++t) EXPECT_EQ(positions[t], static_cast<int64_t>(t));
    for (int64_t i = 0; i < k.size(); ++i) k_hat.data[i] = std::round(k.data[i] * 4) / 4;
    for (int64_t i = 0; i < v.size(); ++i) v_hat.data[i] = std::round(v.data[i] * 8) / 8;
  }
};

// Rounds like RoundingTap. A float64 value that differs from float32's by rounding may round to the
// other side, so the reference takes the rows that the runner rounded.
test::NaiveCache::Replace RoundedRows(const test::RowKeeper::Rows& rows, double k_steps,
                                      double v_steps) {
  const auto round = [](const test::KeptRows& x, test::Rows& out, double steps) {
    const auto width = static_cast<size_t>(x.heads * x.dim);
    for (size_t t = 0; t < out.size(); ++t) {
      for (size_t i = 0; i < width; ++i) {
        out[t][i] = std::round(double{x.data[t * width + i]} * steps) / steps;
      }
    }
  };
  return [&rows, round, k_steps, v_steps](const test::Rows&, const test::Rows&, test::Rows& k_hat,
                                          test::Rows& v_hat) {
    round(rows.k, k_hat, k_steps);
    round(rows.v, v_hat, v_steps);
  };
}

test::NaiveCache RoundingCache(const test::RowKeeper::Rows& rows, const Windows& windows,
                               bool use_windows) {
  return {RoundedRows(rows, 4, 8), [windows, use_windows](int64_t i, int64_t j) {
            return !use_windows || windows.Quantised(i, j);
          }};
}

TEST_P(Variants, StreamsMatchTheFormulas) {
  const FakeWeights weights(Config());
  const auto sequences = RandomSequences({3, 60, 530}, weights.config().vocab, 3);
  const test::NaiveModel naive(weights);
  struct Choice {
    Windows windows;
    bool use_windows;
  };
  const std::vector<Choice> choices = {{{4, 16}, true},   {{0, 0}, true},   {{0, 300}, true},
                                       {{600, 1}, true},  {{1, 256}, true}, {{64, 256}, false},
                                       {{4, 16, 8}, true}};
  RoundingTap tap;
  ModelRunner runner = Runner(weights, sequences);
  std::vector<test::RowKeeper> keepers(choices.size() + 1);
  runner.AddSink(&keepers[0]);
  for (size_t c = 0; c < choices.size(); ++c) {
    EXPECT_EQ(runner.AddStream(&tap, choices[c].windows, choices[c].use_windows),
              static_cast<int>(c) + 1);
    runner.AddSink(&keepers[c + 1], static_cast<int>(c) + 1);
  }
  RunAll(runner, weights);
  for (size_t c = 0; c < choices.size(); ++c) {
    SCOPED_TRACE("choice " + std::to_string(c));
    std::vector<test::Rows> expected;
    for (size_t s = 0; s < sequences.size(); ++s) {
      test::Rows hidden = naive.Embed(sequences[s]);
      for (int64_t layer = 0; layer < weights.config().layers; ++layer) {
        const auto& rows =
            keepers[c + 1].rows.at({static_cast<int>(layer), static_cast<int64_t>(s)});
        const test::NaiveCache cache =
            RoundingCache(rows, choices[c].windows, choices[c].use_windows);
        hidden = naive.Layer(layer, hidden, &cache);
      }
      expected.push_back(std::move(hidden));
    }
    CompareHidden(runner, static_cast<int>(c) + 1, expected);
  }
  // The streams do differ: from the exact run, and by their windows.
  const auto exact = HiddenOf(runner, weights);
  EXPECT_NE(HiddenOf(runner, weights, 1), exact);
  EXPECT_NE(HiddenOf(runner, weights, 2), HiddenOf(runner, weights, 1));
  EXPECT_EQ(HiddenOf(runner, weights, 4), exact);  // 600 sink tokens cover every sequence
}

// The attention of other devices, by ATen's kernels, against the CPU's own.
TEST_P(Variants, BothAttentionsGiveTheSameStreams) {
  const FakeWeights weights(Config());
  const auto sequences = RandomSequences({60, 530}, weights.config().vocab, 3);
  const std::vector<Windows> windows = {{4, 16}, {0, 300}, {4, 16, 8}, {1, 250, 64}};
  RoundingTap tap;
  std::vector<std::unique_ptr<ModelRunner>> runners;
  for (const bool fused : {true, false}) {
    runners.push_back(
        std::make_unique<ModelRunner>(weights, sequences, "cpu", Context(), RunnerOptions{fused}));
    for (const Windows& w : windows) runners.back()->AddStream(&tap, w, true);
    // One layer: rounding amplifies differences from the second on.
    runners.back()->RunLayer(nullptr, nullptr);
  }
  for (int stream = 0; stream <= static_cast<int>(windows.size()); ++stream) {
    const auto own = HiddenOf(*runners[0], weights, stream);
    const auto aten = HiddenOf(*runners[1], weights, stream);
    test::WorstError worst;
    for (size_t i = 0; i < own.size(); ++i) worst.Add(own[i], double{aten[i]});
    EXPECT_LE(worst.relative(), kTolerance) << stream << ": " << worst.Where();
  }
}

// Window rows of another grid than quantised ones.
class WindowTap final : public KvTap {
 public:
  void Apply(int layer, std::span<const int64_t> positions, HeadRows<const float> k,
             HeadRows<const float> v, HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    rounding_.Apply(layer, positions, k, v, k_hat, v_hat);
  }
  bool ChangesWindows(int layer) const override { return layer == 1; }
  void ApplyWindows(int layer, HeadRows<const float> k, HeadRows<const float> v,
                    HeadRows<float> k_window, HeadRows<float> v_window) override {
    EXPECT_EQ(layer, 1);
    for (int64_t i = 0; i < k.size(); ++i) k_window.data[i] = std::round(k.data[i] * 16) / 16;
    for (int64_t i = 0; i < v.size(); ++i) v_window.data[i] = std::round(v.data[i] * 32) / 32;
  }

 private:
  RoundingTap rounding_;
};

TEST_P(Variants, TapsMayChangeTheWindowsToo) {
  const FakeWeights weights(Config());
  // Shorter than the windows, and longer.
  const auto sequences = RandomSequences({3, 9, 60}, weights.config().vocab, 3);
  const test::NaiveModel naive(weights);
  WindowTap tap;
  const Windows windows{4, 16};
  ModelRunner runner = Runner(weights, sequences);
  test::RowKeeper keeper;
  runner.AddStream(&tap, windows, true);
  runner.AddStream(&tap, windows, false);
  runner.AddSink(&keeper, 1);
  RunAll(runner, weights);
  std::vector<test::Rows> expected;
  for (size_t s = 0; s < sequences.size(); ++s) {
    test::Rows hidden = naive.Embed(sequences[s]);
    for (int64_t layer = 0; layer < weights.config().layers; ++layer) {
      const auto& rows = keeper.rows.at({static_cast<int>(layer), static_cast<int64_t>(s)});
      test::NaiveCache cache = RoundingCache(rows, windows, true);
      if (layer == 1) cache.window = RoundedRows(rows, 16, 32);
      hidden = naive.Layer(layer, hidden, &cache);
    }
    expected.push_back(std::move(hidden));
  }
  CompareHidden(runner, 1, expected);
  // Without windows there are none to change.
  RoundingTap plain;
  ModelRunner other = Runner(weights, sequences);
  other.AddStream(&plain, windows, false);
  RunAll(other, weights);
  EXPECT_EQ(HiddenOf(runner, weights, 2), HiddenOf(other, weights, 1));
}

class IdentityTap final : public KvTap {
 public:
  void Apply(int, std::span<const int64_t>, HeadRows<const float> k, HeadRows<const float> v,
             HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    std::copy_n(k.data, k.size(), k_hat.data);
    std::copy_n(v.data, v.size(), v_hat.data);
    ++calls;
  }
  int calls = 0;
};

TEST_F(RunnerTest, TapThatChangesNothingLeavesEveryBit) {
  const FakeWeights weights(SmallConfig());
  ModelRunner runner = Runner(weights, RandomSequences({7, 400}, weights.config().vocab, 4));
  IdentityTap tap;
  runner.AddStream(&tap, {4, 16}, true);
  runner.AddStream(&tap, {4, 16}, false);
  RunAll(runner, weights);
  EXPECT_EQ(tap.calls, 2 * 2 * 2);
  EXPECT_EQ(HiddenOf(runner, weights, 1), HiddenOf(runner, weights));
  EXPECT_EQ(HiddenOf(runner, weights, 2), HiddenOf(runner, weights));
  for (const LogitComparison& c : runner.CompareLogits(std::vector<int>{1, 2})) {
    EXPECT_THAT(c.kl, testing::Each(0.0));
    EXPECT_THAT(c.top1, testing::Each(1));
  }
}

// Changes one key of one position only.
class OneKeyTap final : public KvTap {
 public:
  explicit OneKeyTap(int64_t position) : position_(position) {}
  void Apply(int, std::span<const int64_t>, HeadRows<const float> k, HeadRows<const float> v,
             HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    std::copy_n(k.data, k.size(), k_hat.data);
    std::copy_n(v.data, v.size(), v_hat.data);
    k_hat.At(position_, 0)[0] += 3;
  }

 private:
  int64_t position_;
};

TEST_F(RunnerTest, QuantisedKeyIsSeenFromTheRecentWindowOn) {
  const FakeWeights weights(SmallConfig());
  ModelRunner runner = Runner(weights, RandomSequences({80}, weights.config().vocab, 5));
  OneKeyTap tap(20);
  const Windows windows{4, 16};
  runner.AddStream(&tap, windows, true);
  runner.RunLayer(nullptr, nullptr);
  const auto exact = HiddenOf(runner, weights);
  const auto tapped = HiddenOf(runner, weights, 1);
  const int64_t width = weights.config().hidden;
  for (int64_t i = 0; i < 80; ++i) {
    double difference = 0;
    for (int64_t d = 0; d < width; ++d) {
      const auto at = static_cast<size_t>(i * width + d);
      difference = std::max(difference, std::abs(double{exact[at]} - double{tapped[at]}));
    }
    if (windows.Quantised(i, 20)) {
      EXPECT_GT(difference, 1e-4) << i;
    } else {
      EXPECT_LT(difference, 1e-5) << i;  // another order of summation only
    }
  }
}

TEST_F(RunnerTest, MomentsAreTheSumsOverTheRows) {
  ModelConfig config = SmallConfig();
  config.qkv_bias = true;
  const FakeWeights weights(config);
  ModelRunner runner = Runner(weights, RandomSequences({70, 1, 600}, config.vocab, 6));
  test::RowKeeper keeper;
  runner.AddSink(&keeper);
  const CaptureSpec spec{ParseMomentList("all"), 2};
  LayerCapture capture;
  runner.RunLayer(&spec, &capture);
  const LayerShape shape = config.ShapeOfLayer(0);
  EXPECT_EQ(capture.layer, 0);
  EXPECT_EQ(capture.moments.count, 671U);
  EXPECT_EQ(capture.moments.shape, shape);
  EXPECT_EQ(capture.moments.sums.size(), MomentTable().size());

  const auto sums = [&](const test::KeptRows test::RowKeeper::Rows::*member, bool squares) {
    std::vector<double> out;
    for (int64_t s = 0; s < 3; ++s) {
      const HeadRows<const float> x = (keeper.rows.at({0, s}).*member).view();
      out.resize(static_cast<size_t>(x.heads * x.dim * (squares ? x.dim : 1)));
      for (int64_t t = 0; t < x.tokens; ++t) {
        for (int64_t h = 0; h < x.heads; ++h) {
          const float* row = x.At(t, h);
          for (int64_t i = 0; i < x.dim; ++i) {
            for (int64_t j = 0; j < (squares ? x.dim : 1); ++j) {
              out[static_cast<size_t>((h * x.dim + i) * (squares ? x.dim : 1) + j)] +=
                  double{row[i]} * (squares ? double{row[j]} : 1.0);
            }
          }
        }
      }
    }
    return out;
  };
  const auto compare = [&](Moment moment, const std::vector<double>& expected, double tolerance) {
    const MomentTensor& actual = capture.moments.At(moment);
    EXPECT_EQ(actual.shape, MomentShape(moment, shape)) << InfoOf(moment).name;
    ASSERT_EQ(actual.data.size(), expected.size()) << InfoOf(moment).name;
    test::WorstError worst;
    for (size_t i = 0; i < expected.size(); ++i) worst.Add(actual.data[i], expected[i]);
    EXPECT_LE(worst.relative(), tolerance) << InfoOf(moment).name << ": " << worst.Where();
  };
  using KeptOf = test::RowKeeper::Rows;
  // Blocks of 64 products in float32: at most 64 * 2^-24 of the sum of magnitudes.
  compare(Moment::kQq, sums(&KeptOf::q, true), 4e-6);
  compare(Moment::kKk, sums(&KeptOf::k, true), 4e-6);
  compare(Moment::kVv, sums(&KeptOf::v, true), 4e-6);
  compare(Moment::kOo, sums(&KeptOf::o, true), 4e-6);
  compare(Moment::kQSum, sums(&KeptOf::q, false), 1e-13);
  compare(Moment::kKSum, sums(&KeptOf::k, false), 1e-13);
  compare(Moment::kVSum, sums(&KeptOf::v, false), 1e-13);

  // sst uses the finished qq, in float64.
  const MomentTensor& qq = capture.moments.At(Moment::kQq);
  EXPECT_EQ(capture.moments.sst_qq_hash, HashOf(qq));
  std::vector<double> sst(static_cast<size_t>(2 * 24 * 24));
  std::vector<double> weight(2);
  for (int64_t s = 0; s < 3; ++s) {
    const HeadRows<const float> k = keeper.rows.at({0, s}).k.view();
    const HeadRows<const float> v = keeper.rows.at({0, s}).v.view();
    for (int64_t t = 0; t < k.tokens; ++t) {
      for (int64_t h = 0; h < 2; ++h) {
        double w = 0;
        for (int64_t i = 0; i < 24; ++i) {
          for (int64_t j = 0; j < 24; ++j) {
            double a = 0;
            for (int64_t g = 0; g < 2; ++g) {
              a += qq.data[static_cast<size_t>(((2 * h + g) * 24 + i) * 24 + j)];
            }
            w += double{k.At(t, h)[i]} * a / (671.0 * 2) * double{k.At(t, h)[j]};
          }
        }
        weight[static_cast<size_t>(h)] += w;
        for (int64_t i = 0; i < 24; ++i) {
          for (int64_t j = 0; j < 24; ++j) {
            sst[static_cast<size_t>((h * 24 + i) * 24 + j)] +=
                w * double{v.At(t, h)[i]} * double{v.At(t, h)[j]};
          }
        }
      }
    }
  }
  compare(Moment::kSst, sst, 1e-12);
  compare(Moment::kSstWeight, weight, 1e-12);
}

TEST_F(RunnerTest, CaptureHoldsTheRowsOfTheFirstSequences) {
  const FakeWeights weights(SmallConfig());
  ModelRunner runner = Runner(weights, RandomSequences({3, 4, 5}, weights.config().vocab, 7));
  test::RowKeeper keeper;
  runner.AddSink(&keeper);
  const CaptureSpec spec{ParseMomentList("qq,k_sum"), 2};
  LayerCapture capture;
  runner.RunLayer(&spec, &capture);
  EXPECT_THAT(capture.moments.sums, testing::UnorderedElementsAre(testing::Key(Moment::kQq),
                                                                  testing::Key(Moment::kKSum)));
  EXPECT_EQ(capture.moments.sst_qq_hash, "");
  std::vector<uint16_t> expected;
  for (int64_t s = 0; s < 2; ++s) {
    for (const float x : keeper.rows.at({0, s}).k.data) expected.push_back(ToBFloat16(x).bits);
  }
  std::vector<uint16_t> actual;
  for (const BFloat16 x : capture.k) actual.push_back(x.bits);
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(capture.q.size(), 7U * 4 * 24);
  EXPECT_EQ(capture.v.size(), 7U * 2 * 24);
  const LayerWeights layer = weights.LoadLayer(0, 1);
  ASSERT_EQ(capture.o_proj.size(), layer.o.size());
  EXPECT_EQ(capture.o_proj[17].bits, ToBFloat16(layer.o[17]).bits);
  // Without rows, and with more than there are.
  const CaptureSpec none{ParseMomentList("vv"), 0};
  runner.RunLayer(&none, &capture);
  EXPECT_TRUE(capture.q.empty());
  EXPECT_EQ(capture.layer, 1);
}

TEST_F(RunnerTest, MomentsDoNotDependOnThreads) {
  const FakeWeights weights(SmallConfig());
  std::vector<std::map<Moment, std::vector<double>>> results;
  for (const int threads : {1, 2, 3}) {
    ModelRunner runner(weights, RandomSequences({100, 700}, weights.config().vocab, 8), "cpu",
                       Context(threads));
    const CaptureSpec spec{ParseMomentList("all"), 0};
    LayerCapture capture;
    runner.RunLayer(&spec, &capture);
    results.emplace_back();
    for (const auto& [id, tensor] : capture.moments.sums) results.back()[id] = tensor.data;
  }
  // q, k and v of the first layer come from matrix products whose blocks MKL may split by threads;
  // here they are small enough not to be split.
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

class CancelAfter final : public AttentionSink {
 public:
  CancelAfter(CancelToken& token, int calls) : token_(token), left_(calls) {}
  void OnSequence(const AttentionRows&) override {
    if (--left_ == 0) token_.Cancel();
  }

 private:
  CancelToken& token_;
  int left_;
};

TEST_F(RunnerTest, InterruptedLayerLeavesTheStateAsItWas) {
  const FakeWeights weights(SmallConfig());
  const auto sequences = RandomSequences({9, 9, 9}, weights.config().vocab, 9);
  ModelRunner runner = Runner(weights, sequences);
  runner.RunLayer(nullptr, nullptr);
  const auto before = HiddenOf(runner, weights);
  CancelAfter sink(cancel_, 2);
  runner.AddSink(&sink);
  test::RowKeeper keeper;
  runner.AddSink(&keeper);
  const CaptureSpec spec{ParseMomentList("qq"), 3};
  LayerCapture capture;
  capture.layer = 77;
  EXPECT_EQ(Thrown([&] { runner.RunLayer(&spec, &capture); }).code(), ErrorCode::kInterrupted);
  EXPECT_EQ(capture.layer, 77);
  EXPECT_EQ(runner.next_layer(), 1);
  EXPECT_EQ(HiddenOf(runner, weights), before);
  EXPECT_EQ(keeper.begun, 1);
  EXPECT_EQ(keeper.ended, 0);
}

class ThrowingTap final : public KvTap {
 public:
  void Apply(int layer, std::span<const int64_t>, HeadRows<const float>, HeadRows<const float>,
             HeadRows<float>, HeadRows<float>) override {
    throw Error(ErrorCode::kMismatch, "no scheme for layer " + std::to_string(layer));
  }
};

TEST_F(RunnerTest, ErrorsOfTapsPassThrough) {
  const FakeWeights weights(SmallConfig());
  ModelRunner runner = Runner(weights, {{1, 2, 3}});
  ThrowingTap tap;
  runner.AddStream(&tap, {}, true);
  const Error error = Thrown([&] { runner.RunLayer(nullptr, nullptr); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_STREQ(error.what(), "no scheme for layer 0");
  EXPECT_EQ(runner.next_layer(), 0);
}

TEST_F(RunnerTest, ValuesThatAreNotFiniteAreNamed) {
  FakeWeights weights(SmallConfig());
  weights.poisoned_layer = 1;
  ModelRunner runner = Runner(weights, {{1, 2, 3}});
  const CaptureSpec spec{ParseMomentList("all"), 0};
  LayerCapture capture;
  runner.RunLayer(&spec, &capture);
  const Error error = Thrown([&] { runner.RunLayer(&spec, &capture); });
  EXPECT_EQ(error.code(), ErrorCode::kNumeric);
  EXPECT_STREQ(error.what(), "layer 1, sequence 0: v has a value that is not finite at token 0");
}

TEST_F(RunnerTest, BadInputIsRefused) {
  const FakeWeights weights(SmallConfig());
  const auto start = [&](std::vector<std::vector<int32_t>> sequences, const std::string& device) {
    return Thrown([&] { ModelRunner(weights, std::move(sequences), device, Context()); });
  };
  EXPECT_EQ(start({}, "cpu").code(), ErrorCode::kData);
  EXPECT_STREQ(start({{1}, {}}, "cpu").what(), "sequence 1 is empty");
  EXPECT_EQ(start({{1, 71}}, "cpu").code(), ErrorCode::kData);
  EXPECT_EQ(start({{1}}, "gpu").code(), ErrorCode::kUsage);
  EXPECT_EQ(start({{1}}, "").code(), ErrorCode::kUsage);
  EXPECT_EQ(start({{1}}, "cuda:").code(), ErrorCode::kUsage);
  EXPECT_EQ(start({{1}}, "cuda:-1").code(), ErrorCode::kUsage);
  EXPECT_EQ(start({{1}}, "cuda:0x").code(), ErrorCode::kUsage);
  EXPECT_EQ(start({{1}}, "cuda:127").code(), ErrorCode::kDevice);
  if (!CudaAvailable()) {
    EXPECT_EQ(start({{1}}, "cuda").code(), ErrorCode::kDevice);
    EXPECT_NE(start({{1}}, "cuda").hint(), "");
  }
  ModelConfig config = SmallConfig();
  config.max_positions = 4;
  const FakeWeights shorter(config);
  const Error error = Thrown([&] { ModelRunner(shorter, {{1, 2, 3, 4, 5}}, "cpu", Context()); });
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_STREQ(error.what(), "sequence 0 has 5 tokens, the model knows positions below 4");
  config.activation = "gelu";
  const FakeWeights other(config);
  EXPECT_EQ(Thrown([&] { ModelRunner(other, {{1}}, "cpu", Context()); }).code(),
            ErrorCode::kUnsupported);
}

TEST_F(RunnerTest, EstimateGrowsWithEverything) {
  const ModelConfig config = SmallConfig();
  const int64_t base = EstimateRunnerBytes(config, 1000, 100, 1);
  EXPECT_GT(base, 0);
  EXPECT_EQ(EstimateRunnerBytes(config, 1000, 100, 2) - base, 2 * 1000 * 40 * 4);
  EXPECT_GT(EstimateRunnerBytes(config, 2000, 100, 1), base);
  EXPECT_GT(EstimateRunnerBytes(config, 1000, 1000, 1), base);
}

}  // namespace
}  // namespace oscar
