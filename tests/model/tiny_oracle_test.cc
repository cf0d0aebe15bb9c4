// The runner against forward passes of small random models by another implementation. Every folder
// with a config.json under model_oracle/tiny is a case.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <optional>

#include "model/compare.h"
#include "model/row_keeper.h"
#include "oscar/core/error.h"
#include "oscar/model/runner.h"
#include "support/golden.h"
#include "support/hdf5_reader.h"

namespace oscar {
namespace {

// The reference and this runner are float32 implementations of one function. The reference's own
// distance to a float64 run is 4e-6 to 2e-5 of the largest entry (its README), so 1e-4 leaves room
// for a different order of summation and no room for a wrong formula.
constexpr double kRowTolerance = 1e-4;
constexpr double kLogitTolerance = 1e-4;  // of the largest logit
constexpr double kNllTolerance = 1e-3;    // nats

std::vector<std::filesystem::path> CaseFolders() {
  std::vector<std::filesystem::path> out;
  const auto root = test::ModelOracle() / "tiny";
  if (!std::filesystem::exists(root)) return out;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    if (std::filesystem::exists(entry.path() / "config.json")) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());
  return out;
}

class TinyOracle : public testing::TestWithParam<std::string> {
 protected:
  // Opens the case and runs it; a model that is not supported yet skips the test by name.
  void SetUp() override {
    const auto folder = test::ModelOracle() / "tiny" / GetParam();
    try {
      weights_ = OpenModel(folder);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      GTEST_SKIP() << GetParam() << " is not supported yet: " << error.what();
    }
    reference_ = std::make_unique<test::Hdf5Reader>(folder / "reference.h5");
    std::vector<std::vector<int32_t>> sequences;
    for (const std::string& name : reference_->Members("/")) {
      if (!name.starts_with("seq")) continue;
      names_.push_back(name);
      sequences.push_back(reference_->Read<int32_t>(name + "/input_ids").data);
      starts_.push_back(total_);
      total_ += static_cast<int64_t>(sequences.back().size());
    }
    ASSERT_FALSE(names_.empty());
    runner_ = std::make_unique<ModelRunner>(*weights_, sequences, "cpu",
                                            RunContext{&progress_, nullptr, 2});
    runner_->AddSink(&keeper_);
    KeepLastHidden();
    while (runner_->next_layer() < weights_->config().layers) {
      runner_->RunLayer(nullptr, nullptr);
      KeepLastHidden();
    }
  }

  void KeepLastHidden() {
    const int64_t width = weights_->config().hidden;
    for (size_t s = 0; s < names_.size(); ++s) {
      const int64_t last = (s + 1 < starts_.size() ? starts_[s + 1] : total_) - 1;
      const float* row = runner_->Hidden(0) + last * width;
      last_hidden_[s].emplace_back(row, row + width);
    }
  }

  NullProgress progress_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<test::Hdf5Reader> reference_;
  std::unique_ptr<ModelRunner> runner_;
  test::RowKeeper keeper_;
  std::vector<std::string> names_;
  std::vector<int64_t> starts_;
  int64_t total_ = 0;
  std::map<size_t, std::vector<std::vector<float>>> last_hidden_;  // per sequence, layer boundary
};

void CompareRows(const test::Hdf5Data<float>& expected, const std::vector<int32_t>& positions,
                 const test::KeptRows& actual) {
  ASSERT_EQ(expected.shape, (std::vector<int64_t>{static_cast<int64_t>(positions.size()),
                                                  actual.heads, actual.dim}));
  test::WorstError worst;
  const int64_t width = actual.heads * actual.dim;
  for (size_t p = 0; p < positions.size(); ++p) {
    for (int64_t i = 0; i < width; ++i) {
      worst.Add(actual.data[static_cast<size_t>(positions[p] * width + i)],
                expected.data[p * static_cast<size_t>(width) + static_cast<size_t>(i)]);
    }
  }
  EXPECT_LE(worst.relative(), kRowTolerance) << worst.Where();
}

TEST_P(TinyOracle, QueriesKeysAndValues) {
  int layers = 0;
  for (size_t s = 0; s < names_.size(); ++s) {
    const auto positions = reference_->Read<int32_t>(names_[s] + "/qkv_positions").data;
    for (int64_t layer = 0; layer < weights_->config().layers; ++layer) {
      const std::string group = names_[s] + "/layer" + std::to_string(layer);
      if (!reference_->Has(group)) continue;
      SCOPED_TRACE(group);
      const LayerShape& shape = keeper_.shapes.at(static_cast<int>(layer));
      EXPECT_DOUBLE_EQ(shape.softmax_scale, reference_->Attribute<double>(group, "softmax_scale"));
      EXPECT_EQ(shape.window, reference_->Attribute<int64_t>(group, "window"));
      const auto& rows = keeper_.rows.at({static_cast<int>(layer), static_cast<int64_t>(s)});
      CompareRows(reference_->Read<float>(group + "/q"), positions, rows.q);
      CompareRows(reference_->Read<float>(group + "/k"), positions, rows.k);
      CompareRows(reference_->Read<float>(group + "/v"), positions, rows.v);
      ++layers;
    }
  }
  EXPECT_GT(layers, 0);
}

TEST_P(TinyOracle, HiddenStatesOfTheLastPosition) {
  const int64_t width = weights_->config().hidden;
  for (size_t s = 0; s < names_.size(); ++s) {
    const auto expected = reference_->Read<float>(names_[s] + "/hidden_last");
    const auto layers = static_cast<size_t>(weights_->config().layers);
    ASSERT_EQ(expected.shape, (std::vector<int64_t>{weights_->config().layers + 1, width}));
    std::vector<std::vector<float>> actual = last_hidden_.at(s);
    // The last row of the reference is after the final norm.
    const int64_t last = (s + 1 < starts_.size() ? starts_[s + 1] : total_) - 1;
    actual[layers] = runner_->FinalHidden({last});
    for (size_t boundary = 0; boundary <= layers; ++boundary) {
      test::WorstError worst;
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
        worst.Add(actual[boundary][i], expected.data[boundary * static_cast<size_t>(width) + i]);
      }
      EXPECT_LE(worst.relative(), kRowTolerance)
          << names_[s] << " boundary " << boundary << ": " << worst.Where();
    }
  }
}

TEST_P(TinyOracle, LogitsAndTheLargest) {
  for (size_t s = 0; s < names_.size(); ++s) {
    const auto positions = reference_->Read<int32_t>(names_[s] + "/logit_positions").data;
    const auto expected = reference_->Read<float>(names_[s] + "/logits");
    const auto argmax = reference_->Read<int32_t>(names_[s] + "/argmax").data;
    const auto vocabulary = static_cast<size_t>(weights_->config().vocab);
    std::vector<int64_t> tokens;
    for (const int32_t p : positions) tokens.push_back(starts_[s] + p);
    const auto top = runner_->Top(tokens, static_cast<int>(vocabulary));
    test::WorstError worst;
    for (size_t p = 0; p < positions.size(); ++p) {
      ASSERT_EQ(top[p].ids.size(), vocabulary);
      EXPECT_TRUE(std::is_sorted(top[p].logits.rbegin(), top[p].logits.rend()));
      EXPECT_EQ(top[p].ids[0], argmax[static_cast<size_t>(positions[p])]);
      for (size_t i = 0; i < vocabulary; ++i) {
        worst.Add(top[p].logits[i],
                  expected.data[p * vocabulary + static_cast<size_t>(top[p].ids[i])]);
      }
    }
    EXPECT_LE(worst.relative(), kLogitTolerance) << names_[s] << ": " << worst.Where();
  }
}

TEST_P(TinyOracle, TokenNll) {
  const std::vector<double> nll = runner_->TokenNll();
  ASSERT_EQ(static_cast<int64_t>(nll.size()), total_);
  for (size_t s = 0; s < names_.size(); ++s) {
    const auto expected = reference_->Read<double>(names_[s] + "/nll").data;
    test::WorstError worst;
    for (size_t t = 0; t < expected.size(); ++t) {
      worst.Add(nll[static_cast<size_t>(starts_[s]) + t], expected[t]);
    }
    EXPECT_LE(worst.absolute(), kNllTolerance) << names_[s] << ": " << worst.Where();
    EXPECT_TRUE(std::isnan(nll[static_cast<size_t>(starts_[s]) + expected.size()]));
  }
}

std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const auto& folder : CaseFolders()) names.push_back(folder.filename().string());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, TinyOracle, testing::ValuesIn(CaseNames()),
                         [](const auto& name) { return name.param; });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TinyOracle);

TEST(TinyOracleCases, AreThere) { EXPECT_FALSE(CaseNames().empty()) << test::ModelOracle(); }

}  // namespace
}  // namespace oscar
