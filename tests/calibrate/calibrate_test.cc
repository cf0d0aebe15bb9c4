#include "oscar/calibrate/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "calibrate/synthetic_trace.h"
#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/linalg/hadamard.h"
#include "oscar/linalg/matrix.h"
#include "oscar/linalg/permutation.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::SyntheticTrace;
using test::WriteSynthetic;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Keeps warnings.
class Collector final : public Progress {
 public:
  void Begin(std::string_view, int64_t total, std::string_view) override { total_ = total; }
  void Advance(int64_t units) override { done_ += units; }
  void Info(std::string_view) override {}
  void Warn(std::string_view message) override { warnings.emplace_back(message); }
  void End() override {
    EXPECT_EQ(done_, total_);
    done_ = 0;
  }
  std::vector<std::string> warnings;

 private:
  int64_t total_ = 0, done_ = 0;
};

class CalibrateTest : public testing::Test {
 protected:
  CalibrateTest()
      : folder_(test::FreshFolder(std::string("calibrate-") +
                                  testing::UnitTest::GetInstance()->current_test_info()->name())) {
    options_.traces = {folder_ / "a.trace.h5"};
    options_.model_name = "synthetic";
    options_.out = folder_ / "entry";
    options_.windows = {4, 8};
    options_.clip.queries = 8;
    options_.clip.grid = {0.7, 1, 0.05};
  }

  CalibrateResult Run(int threads = 2) {
    collector_.warnings.clear();
    return Calibrate(options_, {&collector_, &cancel_, threads});
  }

  Error Failure() {
    try {
      Run();
    } catch (const Error& error) {
      EXPECT_FALSE(fs::exists(options_.out));
      // Not even a temporary folder: the traces are all there is.
      for (const auto& entry : fs::directory_iterator(folder_)) {
        EXPECT_EQ(entry.path().extension(), ".h5") << entry.path();
      }
      return error;
    }
    ADD_FAILURE() << "no error";
    return Error(ErrorCode::kUsage, "");
  }

  fs::path folder_;
  CalibrateOptions options_;
  Collector collector_;
  CancelToken cancel_;
};

std::set<std::string> KeysOf(const Value& object) {
  std::set<std::string> keys;
  for (const auto& [key, value] : object.AsObject()) keys.insert(key);
  return keys;
}

TEST_F(CalibrateTest, WritesAValidPairWithItsManifest) {
  WriteSynthetic({.layers = {3, 7}}, options_.traces[0]);
  const CalibrateResult result = Run();
  const ZooEntry entry = ReadZooEntry(options_.out);
  for (const ZooFinding& finding : ValidateEntry(entry)) {
    EXPECT_FALSE(finding.error) << finding.where << ": " << finding.what;
  }
  EXPECT_EQ(entry.key_path.filename(), "k_rotation_qqt_r_h_pbr.pt");
  EXPECT_EQ(entry.value_path.filename(), "v_rotation_sst_r_h_pbr.pt");
  EXPECT_EQ(entry.key.objective, "qqt_r_h_pbr");
  EXPECT_EQ(entry.value.objective, "sst_r_h_pbr");
  EXPECT_EQ(entry.key.format_version, Value(1));
  EXPECT_EQ(entry.key.source_grouping, "layer");
  ASSERT_EQ(entry.key.layers.size(), 2U);
  ASSERT_TRUE(entry.key.layers.contains(3) && entry.key.layers.contains(7));
  EXPECT_EQ(entry.key.layers.at(3).eigenvalues.size(), 16U);

  const Value& manifest = *entry.manifest;
  EXPECT_EQ(KeysOf(manifest), (std::set<std::string>{"schema",
                                                     "tool",
                                                     "git_revision",
                                                     "model",
                                                     "targets",
                                                     "composition",
                                                     "grouping",
                                                     "signs",
                                                     "eigenvalue_order",
                                                     "hadamard_kind",
                                                     "windows",
                                                     "group_size",
                                                     "scale_dtype",
                                                     "min_tokens_per_dim",
                                                     "clip",
                                                     "calibration",
                                                     "layers",
                                                     "recommendation",
                                                     "volatile",
                                                     "files"}));
  EXPECT_EQ(manifest.At("model").At("id"), Value("synthetic"));
  EXPECT_EQ(manifest.At("model").At("layers"), Value(2));
  EXPECT_EQ(manifest.At("calibration").At("tokens"), Value(204));
  EXPECT_EQ(manifest.At("calibration").At("sequences").AsArray().size(), 4U);
  EXPECT_EQ(manifest.At("calibration").At("traces").AsArray().at(0),
            Value(Sha256File(options_.traces[0].string())));
  // float64 eigenvalues in the manifest, rounded ones in the file.
  const Value::Array& eigenvalues =
      manifest.At("layers").At("3").At("key").At("eigenvalues").AsArray();
  ASSERT_EQ(eigenvalues.size(), 16U);
  for (size_t i = 0; i < 16; ++i) {
    EXPECT_EQ(static_cast<float>(eigenvalues[i].AsDouble()), entry.key.layers.at(3).eigenvalues[i]);
  }
  EXPECT_THAT(result.summary, AllOf(HasSubstr("qqt_r_h_pbr"), HasSubstr("recommended")));
  EXPECT_EQ(result.record.At("schema"), Value("oscar.calibrate/1"));
}

TEST_F(CalibrateTest, ClipRatiosAreTheBestOfTheRecordedCurves) {
  WriteSynthetic({}, options_.traces[0]);
  Run();
  const ZooEntry entry = ReadZooEntry(options_.out);
  const Value& clip = entry.manifest->At("clip");
  EXPECT_EQ(clip.At("mode"), Value("search"));
  const Value::Array& ratios = clip.At("curves").At("ratios").AsArray();
  ASSERT_EQ(ratios.size(), 7U);
  double best_sum = 0;
  std::vector<double> mean(ratios.size());
  for (const int layer : {0, 1}) {
    const Value::Array& curve = clip.At("curves").At("key").At(std::to_string(layer)).AsArray();
    size_t best = 0;
    for (size_t i = 0; i < curve.size(); ++i) {
      EXPECT_GT(curve[i].AsDouble(), 0);
      if (curve[i].AsDouble() <= curve[best].AsDouble()) best = i;
      mean[i] += curve[i].AsDouble() / 2;
    }
    best_sum += curve[best].AsDouble() / 2;
    EXPECT_EQ(entry.KeyClip(layer), ratios[best].AsDouble());
    EXPECT_TRUE(entry.ValueClip(layer).has_value());
  }
  const Value& single = clip.At("single");
  const Value& losses = single.At("losses").At("key");
  EXPECT_DOUBLE_EQ(losses.At("per_layer").AsDouble(), best_sum);
  EXPECT_DOUBLE_EQ(losses.At("single").AsDouble(), *std::min_element(mean.begin(), mean.end()));
  EXPECT_GE(losses.At("single").AsDouble(), losses.At("per_layer").AsDouble());
}

TEST_F(CalibrateTest, EqualRunsGiveEqualBytesAtAnyThreadCount) {
  WriteSynthetic({.layers = {0, 1, 2}}, options_.traces[0]);
  Run(1);
  options_.out = folder_ / "again";
  Run(3);
  const ZooEntry a = ReadZooEntry(folder_ / "entry"), b = ReadZooEntry(folder_ / "again");
  EXPECT_EQ(Sha256File(a.key_path.string()), Sha256File(b.key_path.string()));
  EXPECT_EQ(Sha256File(a.value_path.string()), Sha256File(b.value_path.string()));
  Value left = *a.manifest, right = *b.manifest;
  EXPECT_EQ(left.At("volatile").At("threads"), Value(1));
  left.MutableObject().erase("volatile");
  right.MutableObject().erase("volatile");
  EXPECT_EQ(left.ToJson(2), right.ToJson(2));
}

TEST_F(CalibrateTest, PerHeadEntriesUseFormatVersionTwo) {
  WriteSynthetic({}, options_.traces[0]);
  options_.grouping = Grouping::kHead;
  Run();
  const ZooEntry entry = ReadZooEntry(options_.out);
  EXPECT_EQ(entry.key.format_version, Value(2));
  EXPECT_EQ(entry.value.source_grouping, "per_kv_head");
  EXPECT_EQ(entry.key.layers.at(0).heads, 2);
  EXPECT_THAT(entry.key.layers.at(0).eigenvalues, IsEmpty());
  const Value& heads = entry.manifest->At("layers").At("0").At("key").At("heads");
  EXPECT_EQ(heads.AsArray().size(), 2U);
  EXPECT_EQ(heads.AsArray()[1].At("eigenvalues").AsArray().size(), 16U);
}

TEST_F(CalibrateTest, ASideWithoutTargetIsDataFree) {
  WriteSynthetic({}, options_.traces[0]);
  options_.value_target = std::nullopt;
  options_.grouping = Grouping::kHead;
  Run();
  ZooEntry entry = ReadZooEntry(options_.out);
  EXPECT_EQ(entry.key.objective, "qqt_r_h_pbr");
  EXPECT_EQ(entry.value_path.filename(), "v_rotation_hadamard.pt");
  EXPECT_EQ(entry.value.objective, "hadamard");
  EXPECT_EQ(entry.value.format_version, Value(1));
  EXPECT_EQ(entry.value.layers.at(0).eigenvalues, std::vector<float>(16, 1.0F));
  options_.fit.composition = Composition::kHadamard;
  options_.out = folder_ / "hadamard";
  Run();
  entry = ReadZooEntry(options_.out);
  EXPECT_EQ(entry.key.objective, "hadamard");
  EXPECT_EQ(entry.manifest->At("targets").At("key"), Value("none"));
  EXPECT_THAT(entry.manifest->At("recommendation").At("reason").AsString(), HasSubstr("data-free"));
}

TEST_F(CalibrateTest, FixedRatiosNeedNoRows) {
  WriteSynthetic({.sequences_with_rows = 0}, options_.traces[0]);
  options_.clip = ClipOptions::FromText("0.96,0.92");
  Run();
  const ZooEntry fixed = ReadZooEntry(options_.out);
  EXPECT_EQ(fixed.KeyClip(1), 0.96);
  EXPECT_EQ(fixed.ValueClip(1), 0.92);
  EXPECT_EQ(fixed.manifest->At("clip").At("single").At("key"), Value(0.96));
  options_.clip = ClipOptions::FromText("off");
  options_.out = folder_ / "off";
  Run();
  const ZooEntry off = ReadZooEntry(options_.out);
  EXPECT_EQ(off.manifest->At("clip").At("mode"), Value("off"));
  EXPECT_EQ(off.KeyClip(0), 1);
}

TEST_F(CalibrateTest, HeadDimsMayDifferBetweenKeysValuesAndLayers) {
  WriteSynthetic({.layers = {0, 5},
                  .kv_heads = 1,
                  .k_dims = {24, 32},
                  .v_dims = {16, 32},
                  .lengths = {200, 200}},
                 options_.traces[0]);
  Run();
  const ZooEntry entry = ReadZooEntry(options_.out);
  EXPECT_EQ(entry.key.layers.at(0).dim, 24);
  EXPECT_EQ(entry.value.layers.at(0).dim, 16);
  EXPECT_EQ(entry.key.layers.at(5).dim, 32);
  EXPECT_TRUE(entry.manifest->At("model").At("k_dim").is_null());
  EXPECT_EQ(entry.manifest->At("model").At("kv_heads"), Value(1));
  EXPECT_EQ(entry.manifest->At("hadamard_kind").At("24"), Value("block(8)"));
  EXPECT_EQ(entry.manifest->At("hadamard_kind").At("32"), Value("sylvester"));
}

TEST_F(CalibrateTest, RecommendsRotationsPerHeadForUnrelatedHeadsOnly) {
  const SyntheticTrace unrelated{.q_heads = 4,
                                 .kv_heads = 4,
                                 .lengths = {1000, 1000},
                                 .sequences_with_rows = 0,
                                 .spectrum_range = 1e4};
  WriteSynthetic(unrelated, options_.traces[0]);
  options_.clip = ClipOptions::FromText("0.96,0.92");
  const CalibrateResult apart = Run();
  EXPECT_EQ(apart.manifest.At("recommendation").At("grouping"), Value("head"));
  EXPECT_GT(apart.manifest.At("recommendation").At("key").At("predicted_ratio").AsDouble(), 10);
  EXPECT_THAT(collector_.warnings, ElementsAre(HasSubstr("--grouping head")));

  SyntheticTrace alike = unrelated;
  alike.heads_alike = true;
  WriteSynthetic(alike, options_.traces[0]);
  options_.force = true;
  const CalibrateResult together = Run();
  EXPECT_EQ(together.manifest.At("recommendation").At("grouping"), Value("layer"));
  EXPECT_NEAR(together.manifest.At("recommendation").At("key").At("predicted_ratio").AsDouble(), 1,
              0.1);
  EXPECT_THAT(collector_.warnings, IsEmpty());
}

// Fewer tokens than channels: values have no second moment of full rank. The two query heads of a
// KV head together still do.
TEST_F(CalibrateTest, APredictedLossThatIsUnknownIsNull) {
  SyntheticTrace few;
  few.lengths = {10};
  few.sequences_with_rows = 1;
  WriteSynthetic(few, options_.traces[0]);
  options_.clip = ClipOptions::FromText("0.96,0.92");
  options_.fit.gates.min_tokens_per_dim = 0;
  const CalibrateResult result = Run();
  const Value& layer = result.manifest.At("layers").At("0");
  const Value& recommendation = result.manifest.At("recommendation");
  EXPECT_GT(layer.At("key").At("predicted_loss").At("ratio").AsDouble(), 0);
  EXPECT_EQ(layer.At("value").At("predicted_loss").At("ratio"), Value());
  EXPECT_GT(recommendation.At("key").At("predicted_ratio").AsDouble(), 0);
  EXPECT_EQ(recommendation.At("value").At("predicted_ratio"), Value());
  EXPECT_THAT(result.summary, HasSubstr(" unknown "));
}

TEST_F(CalibrateTest, SearchMeasuresBothGroupings) {
  WriteSynthetic({}, options_.traces[0]);
  const Value shared = Run().manifest;
  options_.grouping = Grouping::kHead;
  options_.force = true;
  const Value per_head = Run().manifest;
  for (const char* side : {"key", "value"}) {
    const Value& a = shared.At("layers").At("0").At(side).At("measured_loss");
    const Value& b = per_head.At("layers").At("0").At(side).At("measured_loss");
    // The chosen grouping is searched in full, the other near the chosen one's best ratio.
    EXPECT_GE(a.At("per_head").AsDouble(), b.At("per_head").AsDouble());
    EXPECT_LE(a.At("shared").AsDouble(), b.At("shared").AsDouble());
    EXPECT_EQ(shared.At("layers").At("0").At(side).At("predicted_loss"),
              per_head.At("layers").At("0").At(side).At("predicted_loss"));
  }
}

// U = R P^T H from the written file diagonalises the target of the trace it was fitted on.
TEST_F(CalibrateTest, TheFileTellsWhichTraceItCameFrom) {
  WriteSynthetic({.layers = {0}, .lengths = {400, 400}}, options_.traces[0]);
  Run();
  const ZooEntry entry = ReadZooEntry(options_.out);
  const ZooLayer& layer = entry.key.layers.at(0);
  const int64_t dim = layer.dim;
  Matrix r(dim, dim);
  for (int64_t i = 0; i < dim * dim; ++i) {
    r.data()[i] = static_cast<double>(layer.rotation[static_cast<size_t>(i)]);
  }
  const std::vector<int64_t> reversal = BitReversal(dim);
  Matrix back(dim, dim);  // R P^T: column perm[j] is column j of R, perm[j] = D - 1 - br(j)
  for (int64_t j = 0; j < dim; ++j) back.col(dim - 1 - reversal[static_cast<size_t>(j)]) = r.col(j);
  const Matrix u = TimesHadamard(back);
  const LayerMoments moments = TraceSet(options_.traces).Moments(0);
  const Matrix c = FormTargets(moments, Target::kQqt, Grouping::kLayer).at(0);
  Matrix off = u.transpose() * c * u;
  off.diagonal().setZero();
  EXPECT_LT(off.cwiseAbs().maxCoeff() / c.norm(), 1e-8);
}

TEST_F(CalibrateTest, SeveralTracesAddUp) {
  options_.clip = ClipOptions::FromText("off");
  WriteSynthetic({.seed = 1}, folder_ / "a.trace.h5");
  WriteSynthetic({.seed = 2}, folder_ / "b.trace.h5");
  options_.traces = {folder_ / "a.trace.h5", folder_ / "b.trace.h5"};
  const Value both = Run().manifest;
  EXPECT_EQ(both.At("calibration").At("tokens"), Value(408));
  EXPECT_EQ(both.At("calibration").At("traces").AsArray().size(), 2U);
  // The order of the files must not matter beyond rounding; addition of two is commutative.
  options_.traces = {folder_ / "b.trace.h5", folder_ / "a.trace.h5"};
  options_.out = folder_ / "swapped";
  const Value swapped = Run().manifest;
  EXPECT_EQ(swapped.At("layers").At("0").At("key"), both.At("layers").At("0").At("key"));
}

TEST_F(CalibrateTest, WarnsAboutTextThatCountsTwiceInALayer) {
  options_.clip = ClipOptions::FromText("off");
  const auto run = [&](const std::vector<int>& a, const std::vector<int>& b) {
    for (const char* name : {"a.trace.h5", "b.trace.h5"}) fs::remove(folder_ / name);
    fs::remove_all(options_.out);
    WriteSynthetic({.layers = a}, folder_ / "a.trace.h5");
    WriteSynthetic({.layers = b}, folder_ / "b.trace.h5");
    options_.traces = {folder_ / "a.trace.h5", folder_ / "b.trace.h5"};
    Run();
    return collector_.warnings;
  };
  EXPECT_THAT(run({0, 1}, {1, 2}),
              testing::Contains(HasSubstr("4 sequences are repeated among the traces")));
  // The layers of one dump, spread over two files.
  EXPECT_THAT(run({0, 1}, {2, 3}), testing::Not(testing::Contains(HasSubstr("repeated"))));
}

TEST_F(CalibrateTest, RefusesBadTracesAndLeavesNothingBehind) {
  options_.traces = {folder_ / "missing.trace.h5"};
  EXPECT_EQ(Failure().code(), ErrorCode::kIo);

  WriteSynthetic({}, folder_ / "a.trace.h5");
  fs::copy_file(folder_ / "a.trace.h5", folder_ / "copy.trace.h5");
  options_.traces = {folder_ / "a.trace.h5", folder_ / "copy.trace.h5"};
  Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kUsage);
  EXPECT_THAT(failure.what(), HasSubstr("same trace"));
  EXPECT_THAT(collector_.warnings, IsEmpty());  // the error says it all

  WriteSynthetic({.seed = 2, .model_id = "other"}, folder_ / "b.trace.h5");
  options_.traces = {folder_ / "a.trace.h5", folder_ / "b.trace.h5"};
  failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kMismatch);
  EXPECT_THAT(failure.what(), AllOf(HasSubstr("b.trace.h5"), HasSubstr("model_id")));
}

TEST_F(CalibrateTest, SaysWhyScoreWeightsOfSeveralTracesDoNotAddUp) {
  WriteSynthetic({.sequences_with_rows = 2, .seed = 1}, folder_ / "a.trace.h5");
  WriteSynthetic({.sequences_with_rows = 2, .seed = 2}, folder_ / "b.trace.h5");
  options_.traces = {folder_ / "a.trace.h5", folder_ / "b.trace.h5"};
  options_.value_target = Target::kSst;
  const Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kData);
  EXPECT_THAT(failure.what(), HasSubstr("several traces"));
  EXPECT_THAT(failure.hint(), AllOf(HasSubstr("--rows-tokens"), HasSubstr("svsv")));
}

TEST_F(CalibrateTest, RefusesTooFewTokensNamingTheLayer) {
  WriteSynthetic({.layers = {4}, .k_dims = {32}}, options_.traces[0]);
  const Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kData);
  EXPECT_THAT(failure.what(), AllOf(HasSubstr("layer 4"), HasSubstr("204 tokens"), HasSubstr("320"),
                                    HasSubstr("rank 32")));
}

TEST_F(CalibrateTest, SearchRefusesTracesInWhichNothingIsQuantised) {
  WriteSynthetic({}, options_.traces[0]);
  options_.windows = {30, 34};
  Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kData);
  EXPECT_THAT(failure.what(), AllOf(HasSubstr("sink 30"), HasSubstr("recent 34"),
                                    HasSubstr("at least 65"), HasSubstr("has 64")));
  options_.windows = {30, 33};  // one position of the longest sequence
  EXPECT_NO_THROW(Run());
  fs::remove_all(options_.out);
  WriteSynthetic({.sequences_with_rows = 0}, options_.traces[0]);
  failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kData);
  EXPECT_THAT(failure.what(), HasSubstr("rows"));
  EXPECT_THAT(failure.hint(), HasSubstr("--clip 0.96,0.92"));
}

TEST_F(CalibrateTest, SearchLeavesOutLayersWhoseSlidingWindowIsRecent) {
  WriteSynthetic({.layers = {0, 3, 7}, .sliding_windows = {0, 8, 9}}, options_.traces[0]);
  const Value clip = Run().manifest.At("clip");
  EXPECT_EQ(clip.At("search").At("left_out"), Value(Value::Array{3}));
  EXPECT_EQ(KeysOf(clip.At("curves").At("key")), (std::set<std::string>{"0", "7"}));
  EXPECT_EQ(KeysOf(clip.At("value")), (std::set<std::string>{"0", "3", "7"}));
  for (const char* side : {"key", "value"}) {
    EXPECT_EQ(clip.At(side).At("3"), clip.At("single").At(side));
  }
  EXPECT_THAT(collector_.warnings, testing::Contains(HasSubstr("left out layer 3")));
  fs::remove_all(options_.out);
  WriteSynthetic({.layers = {4, 5}, .sliding_windows = {7}}, options_.traces[0]);
  const Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kData);
  EXPECT_THAT(failure.what(), AllOf(HasSubstr("sliding window of 7 tokens of layer 4"),
                                    HasSubstr("8 recent tokens"), HasSubstr("sink 4"),
                                    HasSubstr("longest sequence 64")));
  // Fixed ratios need no measurement.
  options_.clip = ClipOptions::FromText("0.96,0.92");
  EXPECT_NO_THROW(Run());
}

TEST_F(CalibrateTest, RefusesHeadDimsThatCannotBePacked) {
  WriteSynthetic({.layers = {4, 9}, .k_dims = {16, 10}}, options_.traces[0]);
  for (const char* clip : {"search", "0.96,0.92", "off"}) {
    const ClipGrid grid = options_.clip.grid;
    options_.clip = ClipOptions::FromText(clip);
    options_.clip.grid = grid;
    const Error failure = Failure();
    EXPECT_EQ(failure.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(failure.what(), HasSubstr("a.trace.h5: layer 9: head dim 10 of keys"));
  }
}

TEST_F(CalibrateTest, RefusesAGroupSizeThatDoesNotFit) {
  WriteSynthetic({}, options_.traces[0]);
  options_.group_size = 12;
  const Error failure = Failure();
  EXPECT_EQ(failure.code(), ErrorCode::kUsage);
  EXPECT_THAT(failure.what(), HasSubstr("layer 0"));
}

TEST_F(CalibrateTest, SaysWhatWillNotDoWhatOneMayExpect) {
  WriteSynthetic({}, options_.traces[0]);
  options_.clip = ClipOptions::FromText("off");
  options_.force = true;
  const auto notes = [&] {
    const CalibrateResult result = Run();
    std::vector<std::string> texts;
    for (const Value& note : result.record.At("notes").AsArray()) {
      texts.push_back(note.AsString());
      EXPECT_THAT(result.summary, HasSubstr("note: " + note.AsString() + "\n"));
    }
    return texts;
  };
  options_.windows = {16, 8};
  EXPECT_THAT(notes(), IsEmpty());
  options_.windows = {4, 12};
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("--sink 4 is no multiple of 8"),
                                   HasSubstr("--recent 12 is no multiple of 8")));
  options_.windows = {0, 8};
  options_.fit.composition = Composition::kHadamard;
  EXPECT_THAT(notes(), IsEmpty());
  options_.key_target = Target::kKtk;
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("--k-target has no effect")));
  options_.value_target = Target::kVtv;
  options_.key_target = std::nullopt;
  EXPECT_THAT(notes(), ElementsAre(HasSubstr("--v-target has no effect")));
}

TEST_F(CalibrateTest, DoesNotReplaceAnEntryUnlessForced) {
  WriteSynthetic({}, options_.traces[0]);
  Run();
  const std::string before = Sha256File((options_.out / "manifest.json").string());
  EXPECT_THROW(Run(), Error);
  EXPECT_EQ(Sha256File((options_.out / "manifest.json").string()), before);
  options_.force = true;
  options_.value_target = Target::kVtv;
  Run();
  EXPECT_EQ(ReadZooEntry(options_.out).value.objective, "vtv_r_h_pbr");
}

TEST_F(CalibrateTest, StopsOnRequest) {
  WriteSynthetic({}, options_.traces[0]);
  cancel_.Cancel();
  EXPECT_EQ(Failure().code(), ErrorCode::kInterrupted);
}

TEST_F(CalibrateTest, WarnsWhenTheGridEndsTooHigh) {
  WriteSynthetic({}, options_.traces[0]);
  // Two order statistics; for rows like these clipping the largest of 16 values helps.
  options_.clip.grid = {0.9, 1, 0.1};
  const Value manifest = Run().manifest;
  for (const char* side : {"key", "value"}) {
    const bool at_end = manifest.At("clip").At(side).At("0") == Value(0.9);
    EXPECT_EQ(std::count_if(collector_.warnings.begin(), collector_.warnings.end(),
                            [&](const std::string& warning) {
                              return warning.find(std::string(side) + " clip") !=
                                         std::string::npos &&
                                     warning.find("layers 0") != std::string::npos;
                            }),
              at_end ? 1 : 0)
        << side;
  }
  EXPECT_THAT(collector_.warnings, testing::Contains(HasSubstr("--clip-grid")));
  // A grid of one ratio was the user's choice.
  options_.clip.grid = {0.9, 0.9, 0.1};
  options_.force = true;
  Run();
  EXPECT_THAT(collector_.warnings, testing::Each(testing::Not(HasSubstr("low end"))));
}

}  // namespace
}  // namespace oscar
