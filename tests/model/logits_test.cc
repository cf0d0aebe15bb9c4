// The LM head: comparison of streams, likelihoods, largest logits; and checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <numeric>

#include "model/compare.h"
#include "model/fake_weights.h"
#include "model/naive_model.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/model/runner.h"
#include "support/golden.h"

namespace oscar {
namespace {

using test::FakeWeights;
using test::RandomSequences;
using test::SmallConfig;

template <typename Function>
ErrorCode CodeOf(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.code();
  }
  throw std::runtime_error("no Error was thrown");
}

// Halves the keys.
class HalfTap final : public KvTap {
 public:
  void Apply(int, std::span<const int64_t>, HeadRows<const float> k, HeadRows<const float> v,
             HeadRows<float> k_hat, HeadRows<float> v_hat) override {
    for (int64_t i = 0; i < k.size(); ++i) k_hat.data[i] = k.data[i] / 2;
    std::copy_n(v.data, v.size(), v_hat.data);
  }
};

// Log-softmax of float32 hidden states' logits, in float64.
test::Row LogProbabilities(const test::NaiveModel& naive, const float* hidden, int64_t width) {
  test::Row logits = naive.Logits(test::Row(hidden, hidden + width));
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - largest);
  for (double& x : logits) x -= largest + std::log(sum);
  return logits;
}

class LogitsTest : public testing::Test {
 protected:
  // A vocabulary of more than one block of the head, and a number of tokens of more than one block.
  static ModelConfig Config() {
    ModelConfig config = SmallConfig();
    config.vocab = 8192 + 71;
    config.layers = 1;
    return config;
  }
  LogitsTest() : weights_(Config()), sequences_(RandomSequences({300, 1, 7}, 71, 1)) {
    runner_ = std::make_unique<ModelRunner>(weights_, sequences_, "cpu",
                                            RunContext{&progress_, nullptr, 2});
    runner_->AddStream(&tap_, {}, false);
    runner_->AddStream(&tap_, {4, 8}, true);
    runner_->RunLayer(nullptr, nullptr);
  }

  NullProgress progress_;
  FakeWeights weights_;
  std::vector<std::vector<int32_t>> sequences_;
  HalfTap tap_;
  std::unique_ptr<ModelRunner> runner_;
};

// Logits of up to 5 have float32 errors near 1e-6; a log-softmax adds no more.
constexpr double kTolerance = 1e-5;

TEST_F(LogitsTest, ComparisonMatchesTheDefinition) {
  const test::NaiveModel naive(weights_);
  const std::vector<LogitComparison> results = runner_->CompareLogits(std::vector<int>{1, 2});
  ASSERT_EQ(results.size(), 2U);
  std::vector<int32_t> next;
  for (const auto& ids : sequences_) {
    next.insert(next.end(), ids.begin() + 1, ids.end());
    next.push_back(-1);
  }
  const int64_t width = weights_.config().hidden;
  for (int s = 0; s < 2; ++s) {
    const LogitComparison& actual = results[static_cast<size_t>(s)];
    ASSERT_EQ(actual.kl.size(), 308U);
    ASSERT_EQ(actual.top1.size(), 308U);
    // Every 7th token: the reference is slow.
    for (size_t t = 0; t < 308; t += 7) {
      const auto offset = static_cast<int64_t>(t) * width;
      const test::Row p = LogProbabilities(naive, runner_->Hidden(0) + offset, width);
      const test::Row q = LogProbabilities(naive, runner_->Hidden(s + 1) + offset, width);
      double kl = 0;
      for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
      EXPECT_NEAR(actual.kl[t], kl, 1e-6 + 1e-4 * kl) << t;
      if (next[t] < 0) {
        EXPECT_TRUE(std::isnan(actual.nll_exact[t]));
        EXPECT_TRUE(std::isnan(actual.nll_stream[t]));
      } else {
        EXPECT_NEAR(actual.nll_exact[t], -p[static_cast<size_t>(next[t])], kTolerance) << t;
        EXPECT_NEAR(actual.nll_stream[t], -q[static_cast<size_t>(next[t])], kTolerance) << t;
      }
      // Neighbouring ids share their logit in this model: the lower one is the top.
      const auto top = [](const test::Row& x) {
        return std::max_element(x.begin(), x.end()) - x.begin();
      };
      EXPECT_EQ(actual.top1[t], top(p) / 2 == top(q) / 2 ? 1 : 0) << t;
    }
    EXPECT_GT(*std::max_element(actual.kl.begin(), actual.kl.end()), 1e-3);
  }
  // One stream alone gives the same numbers.
  const LogitComparison alone = runner_->CompareLogits(2);
  EXPECT_EQ(alone.kl, results[1].kl);
  EXPECT_EQ(alone.top1, results[1].top1);
  const std::vector<double> nll = runner_->TokenNll();
  for (size_t t = 0; t < nll.size(); ++t) {
    if (next[t] >= 0) {
      EXPECT_EQ(nll[t], results[0].nll_exact[t]);
    } else {
      EXPECT_TRUE(std::isnan(nll[t]));
    }
  }
}

TEST_F(LogitsTest, TopIsSortedAndBreaksTiesById) {
  const test::NaiveModel naive(weights_);
  const int64_t width = weights_.config().hidden;
  const std::vector<int64_t> tokens = {0, 299, 307};
  const auto vocab = static_cast<size_t>(weights_.config().vocab);
  const auto top = runner_->Top(tokens, static_cast<int>(vocab));
  const auto short_top = runner_->Top(tokens, 5);
  for (size_t i = 0; i < tokens.size(); ++i) {
    ASSERT_EQ(top[i].ids.size(), vocab);
    const float* hidden = runner_->Hidden(0) + tokens[i] * width;
    const test::Row logits = naive.Logits(test::Row(hidden, hidden + width));
    std::vector<int32_t> ids = top[i].ids;
    for (size_t n = 0; n < vocab; ++n) {
      EXPECT_NEAR(top[i].logits[n], logits[static_cast<size_t>(ids[n])], kTolerance);
      if (n > 0) {
        EXPECT_TRUE(top[i].logits[n - 1] > top[i].logits[n] ||
                    (top[i].logits[n - 1] == top[i].logits[n] && ids[n - 1] < ids[n]));
      }
    }
    std::sort(ids.begin(), ids.end());
    std::vector<int32_t> all(vocab);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(ids, all);
    EXPECT_THAT(short_top[i].ids,
                testing::ElementsAreArray(top[i].ids.begin(), top[i].ids.begin() + 5));
  }
}

TEST_F(LogitsTest, FinalHiddenIsTheNormalisedState) {
  const test::NaiveModel naive(weights_);
  const int64_t width = weights_.config().hidden;
  const std::vector<float> actual = runner_->FinalHidden({305, 2});
  ASSERT_EQ(actual.size(), static_cast<size_t>(2 * width));
  test::WorstError worst;
  for (const int64_t t : {305, 2}) {
    const float* hidden = runner_->Hidden(0) + t * width;
    const test::Row expected = naive.FinalNorm(test::Row(hidden, hidden + width));
    for (size_t i = 0; i < expected.size(); ++i) {
      worst.Add(actual[(t == 305 ? 0 : static_cast<size_t>(width)) + i], expected[i]);
    }
  }
  EXPECT_LE(worst.relative(), 8 * 0x1p-24) << worst.Where();
}

TEST_F(LogitsTest, StopsWhenCancelled) {
  CancelToken cancel;
  ModelRunner runner(weights_, {{1, 2}}, "cpu", {&progress_, &cancel, 1});
  runner.RunLayer(nullptr, nullptr);
  cancel.Cancel();
  EXPECT_EQ(CodeOf([&] { runner.TokenNll(); }), ErrorCode::kInterrupted);
}

class StateTest : public testing::Test {
 protected:
  std::unique_ptr<ModelRunner> Runner(const std::vector<std::vector<int32_t>>& sequences,
                                      uint64_t model = 1) {
    weights_.push_back(std::make_unique<FakeWeights>(SmallConfig(), model));
    return std::make_unique<ModelRunner>(*weights_.back(), sequences, "cpu",
                                         RunContext{&progress_, nullptr, 2});
  }
  static std::vector<float> HiddenOf(const ModelRunner& runner) {
    return {runner.Hidden(0), runner.Hidden(0) + runner.total_tokens() * SmallConfig().hidden};
  }

  NullProgress progress_;
  std::vector<std::unique_ptr<FakeWeights>> weights_;
  std::vector<std::vector<int32_t>> sequences_ = RandomSequences({30, 11}, 71, 2);
};

TEST_F(StateTest, RestoredRunGoesOnToEqualBits) {
  const auto file = test::FreshFolder("model-state") / "state.bin";
  auto first = Runner(sequences_);
  first->RunLayer(nullptr, nullptr);
  const std::shared_ptr<const RunnerState> state = first->State();
  first->RunLayer(nullptr, nullptr);  // the state keeps the boundary it was taken at
  EXPECT_EQ(state->next_layer(), 1);
  state->Save(file);
  auto second = Runner(sequences_);
  second->RestoreState(file);
  EXPECT_EQ(second->next_layer(), 1);
  second->RunLayer(nullptr, nullptr);
  EXPECT_EQ(HiddenOf(*second), HiddenOf(*first));
  // The end is a boundary too, and a file may be replaced.
  first->SaveState(file);
  auto third = Runner(sequences_);
  third->RestoreState(file);
  EXPECT_EQ(third->next_layer(), 2);
  EXPECT_EQ(HiddenOf(*third), HiddenOf(*first));
  EXPECT_EQ(third->TokenNll()[5], first->TokenNll()[5]);
}

TEST_F(StateTest, OtherRunsAreRefused) {
  const auto file = test::FreshFolder("model-state-other") / "state.bin";
  Runner(sequences_)->SaveState(file);
  auto other_text = sequences_;
  other_text[1][3] ^= 1;
  EXPECT_EQ(CodeOf([&] { Runner(other_text)->RestoreState(file); }), ErrorCode::kMismatch);
  std::vector<int32_t> joined = sequences_[0];
  joined.insert(joined.end(), sequences_[1].begin(), sequences_[1].end());
  EXPECT_EQ(CodeOf([&] { Runner({joined})->RestoreState(file); }), ErrorCode::kMismatch);
  EXPECT_EQ(CodeOf([&] { Runner(sequences_, 2)->RestoreState(file); }), ErrorCode::kMismatch);
  EXPECT_EQ(CodeOf([&] { Runner(sequences_)->RestoreState(file.parent_path() / "none"); }),
            ErrorCode::kIo);
}

TEST_F(StateTest, EveryDamagedByteIsFound) {
  const auto folder = test::FreshFolder("model-state-damage");
  Runner(sequences_)->SaveState(folder / "state.bin");
  const std::string good = ReadTextFile(folder / "state.bin");
  const auto damaged = [&](const std::string& bytes) {
    std::ofstream(folder / "damaged.bin", std::ios::binary) << bytes;
    auto runner = Runner(sequences_);
    const ErrorCode code = CodeOf([&] { runner->RestoreState(folder / "damaged.bin"); });
    EXPECT_EQ(runner->next_layer(), 0);
    return code;
  };
  for (size_t at = 0; at < good.size(); at += at < 120 ? 1 : 331) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x40);
    // Bytes 16 to 95 say how many tokens, how wide, and whose: another run's as far as one can see.
    const bool identity = at >= 16 && at < 96;
    EXPECT_EQ(damaged(bytes), identity ? ErrorCode::kMismatch : ErrorCode::kFormat) << at;
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{103}, size_t{104}, good.size() - 1}) {
    EXPECT_EQ(damaged(good.substr(0, size)), ErrorCode::kFormat) << size;
  }
  EXPECT_EQ(damaged(good + "x"), ErrorCode::kFormat);
  EXPECT_FALSE(std::filesystem::exists(TemporarySibling(folder / "state.bin")));
}

TEST_F(StateTest, UnwritablePlaceIsAnError) {
  const auto folder = test::FreshFolder("model-state-io");
  EXPECT_EQ(CodeOf([&] { Runner(sequences_)->SaveState(folder / "missing" / "state.bin"); }),
            ErrorCode::kIo);
}

}  // namespace
}  // namespace oscar
