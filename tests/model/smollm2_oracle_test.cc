// The runner against a forward pass of SmolLM2-135M-Instruct by another implementation.
#include <gtest/gtest.h>

#include <charconv>

#include "model/compare.h"
#include "model/row_keeper.h"
#include "oscar/core/dtype.h"
#include "oscar/model/runner.h"
#include "oscar/stats/moments.h"
#include "support/golden.h"
#include "support/hdf5_reader.h"

namespace oscar {
namespace {

// Rows are stored as float16 (relative rounding 2^-11 = 5e-4 of an entry).
constexpr double kRowTolerance = 1e-3;
// Sums of float64 products of float32 rows; a float64 run of the model differs by 2e-7.
constexpr double kMomentTolerance = 1e-5;
constexpr double kNllTolerance = 1e-3;
constexpr double kHiddenTolerance = 1e-4;
constexpr double kLogitTolerance = 1e-3;  // absolute; a float64 run differs by 6e-5

// One run for all tests of this file: it takes seconds.
struct ReferenceRun {
  test::Hdf5Reader reference{test::ModelOracle() / "smollm2" / "reference.h5"};
  NullProgress progress;
  std::unique_ptr<ModelWeights> weights = OpenModel(test::SmolLm2Gguf());
  std::unique_ptr<ModelRunner> runner;
  test::RowKeeper keeper;
  std::map<int, LayerCapture> captures;

  ReferenceRun() {
    const auto ids = reference.Read<int32_t>("token_ids").data;
    runner = std::make_unique<ModelRunner>(*weights, std::vector<std::vector<int32_t>>{ids}, "cpu",
                                           RunContext{&progress, nullptr, 2});
    runner->AddSink(&keeper);
    const CaptureSpec spec{ParseMomentList("all"), 1};
    while (runner->next_layer() < weights->config().layers) {
      LayerCapture capture;
      runner->RunLayer(&spec, &capture);
      captures.emplace(capture.layer, std::move(capture));
    }
  }
};

std::unique_ptr<ReferenceRun> shared_run;

class SmolLm2Oracle : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (!test::SmolLm2Gguf().empty() &&
        std::filesystem::exists(test::ModelOracle() / "smollm2" / "reference.h5")) {
      shared_run = std::make_unique<ReferenceRun>();
    }
  }
  static void TearDownTestSuite() { shared_run.reset(); }
  void SetUp() override {
    if (!shared_run) GTEST_SKIP() << "the model's GGUF file or the reference is not there";
  }

  // Layers that the reference holds.
  static std::vector<int> Layers() {
    std::vector<int> out;
    for (const std::string& name : shared_run->reference.Members("/")) {
      int layer = -1;
      if (name.starts_with("layer")) {
        std::from_chars(name.data() + 5, name.data() + name.size(), layer);
        out.push_back(layer);
      }
    }
    return out;
  }
};

void CompareRows(const std::string& name, const std::vector<int32_t>& positions,
                 const test::KeptRows& actual) {
  // HDF5 widens float16 to float32 exactly.
  const auto expected = shared_run->reference.Read<float>(name);
  const int64_t width = actual.heads * actual.dim;
  ASSERT_EQ(expected.shape, (std::vector<int64_t>{static_cast<int64_t>(positions.size()),
                                                  actual.heads, actual.dim}));
  test::WorstError worst;
  for (size_t p = 0; p < positions.size(); ++p) {
    for (int64_t i = 0; i < width; ++i) {
      worst.Add(actual.data[static_cast<size_t>(positions[p] * width + i)],
                expected.data[p * static_cast<size_t>(width) + static_cast<size_t>(i)]);
    }
  }
  EXPECT_LE(worst.relative(), kRowTolerance) << name << ": " << worst.Where();
}

TEST_F(SmolLm2Oracle, QueriesKeysAndValues) {
  const auto positions = shared_run->reference.Read<int32_t>("positions").data;
  ASSERT_FALSE(Layers().empty());
  for (const int layer : Layers()) {
    const auto& rows = shared_run->keeper.rows.at({layer, 0});
    const std::string group = "layer" + std::to_string(layer);
    CompareRows(group + "/q", positions, rows.q);
    CompareRows(group + "/k", positions, rows.k);
    CompareRows(group + "/v", positions, rows.v);
  }
}

TEST_F(SmolLm2Oracle, Moments) {
  const std::pair<const char*, Moment> kinds[] = {
      {"QtQ", Moment::kQq}, {"KtK", Moment::kKk}, {"VtV", Moment::kVv}, {"OtO", Moment::kOo}};
  for (const int layer : Layers()) {
    for (const auto& [name, moment] : kinds) {
      const std::string path = "layer" + std::to_string(layer) + "/" + name;
      const auto expected = shared_run->reference.Read<double>(path);
      const MomentTensor& actual = shared_run->captures.at(layer).moments.At(moment);
      ASSERT_EQ(actual.shape, expected.shape) << path;
      test::WorstError worst;
      for (size_t i = 0; i < expected.data.size(); ++i) {
        worst.Add(actual.data[i], expected.data[i]);
      }
      EXPECT_LE(worst.relative(), kMomentTolerance) << path << ": " << worst.Where();
    }
  }
}

TEST_F(SmolLm2Oracle, CapturedRowsAreTheRowsRounded) {
  for (const auto& [layer, capture] : shared_run->captures) {
    const auto& rows = shared_run->keeper.rows.at({layer, 0});
    const auto same = [](const std::vector<BFloat16>& a, const std::vector<float>& b) {
      return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                        [](BFloat16 x, float y) { return x.bits == ToBFloat16(y).bits; });
    };
    EXPECT_TRUE(same(capture.q, rows.q.data)) << layer;
    EXPECT_TRUE(same(capture.k, rows.k.data)) << layer;
    EXPECT_TRUE(same(capture.v, rows.v.data)) << layer;
  }
}

TEST_F(SmolLm2Oracle, TokenNll) {
  const auto expected = shared_run->reference.Read<double>("nll").data;
  const std::vector<double> nll = shared_run->runner->TokenNll();
  ASSERT_EQ(nll.size(), expected.size() + 1);
  test::WorstError worst;
  for (size_t t = 0; t < expected.size(); ++t) worst.Add(nll[t], expected[t]);
  EXPECT_LE(worst.absolute(), kNllTolerance) << worst.Where();
  EXPECT_TRUE(std::isnan(nll.back()));
}

TEST_F(SmolLm2Oracle, FinalHiddenStates) {
  const auto positions = shared_run->reference.Read<int32_t>("hidden_positions").data;
  const auto expected = shared_run->reference.Read<float>("hidden");
  const std::vector<float> actual =
      shared_run->runner->FinalHidden({positions.begin(), positions.end()});
  ASSERT_EQ(actual.size(), expected.data.size());
  test::WorstError worst;
  for (size_t i = 0; i < actual.size(); ++i) worst.Add(actual[i], expected.data[i]);
  EXPECT_LE(worst.relative(), kHiddenTolerance) << worst.Where();
}

TEST_F(SmolLm2Oracle, LargestLogits) {
  const auto positions = shared_run->reference.Read<int32_t>("top_positions").data;
  const auto ids = shared_run->reference.Read<int32_t>("top_ids");
  const auto logits = shared_run->reference.Read<float>("top_logits");
  const auto count = static_cast<size_t>(ids.shape[1]);
  const auto top =
      shared_run->runner->Top({positions.begin(), positions.end()}, static_cast<int>(count));
  for (size_t p = 0; p < positions.size(); ++p) {
    ASSERT_EQ(top[p].ids.size(), count);
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(top[p].ids[i], ids.data[p * count + i]) << "position " << positions[p];
      EXPECT_NEAR(top[p].logits[i], logits.data[p * count + i], kLogitTolerance);
    }
  }
}

}  // namespace
}  // namespace oscar
