#include "oscar/verify/verify_traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "oscar/metrics/attention.h"
#include "oscar/report/verify_report.h"
#include "oscar/verify/belonging.h"
#include "oscar/verify/evaluate.h"
#include "verify/fake_inputs.h"

namespace oscar {
namespace {

using test::kSmallWindows;
using testing::HasSubstr;

namespace fs = std::filesystem;

const SchemeResult& Named(const std::vector<SchemeResult>& schemes, const std::string& name) {
  for (const SchemeResult& scheme : schemes) {
    if (scheme.name == name) return scheme;
  }
  throw std::runtime_error("no scheme " + name);
}

// A folder with a trace of three sequences (two layers) and an entry calibrated on other text.
class VerifyTest : public testing::Test {
 protected:
  VerifyTest()
      : folder_(test::FreshFolder(std::string("verify-") +
                                  testing::UnitTest::GetInstance()->current_test_info()->name())),
        held_out_(test::FakeHeader({60, 40, 50}, 3, {2, 5}, 1)),
        calibration_(test::FakeHeader({70}, 0, {2, 5}, 99)) {
    options_.traces = {test::WriteVerifyTrace(folder_ / "held-out.trace.h5", held_out_)};
    options_.method.windows = kSmallWindows;
    options_.positions = 16;
  }

  fs::path Entry(const std::string& name, const test::EntryParts& parts) {
    return test::WriteVerifyEntry(folder_ / name, parts);
  }
  fs::path GoodEntry(const std::string& name) {
    return Entry(name, test::GoodEntry({2, 5}, calibration_));
  }
  Verification Run() { return VerifyTraces(options_, ReadEntries(zoo_), quiet_.context); }
  Error Refusal() {
    return test::Thrown([&] { Run(); });
  }

  fs::path folder_;
  TraceHeader held_out_, calibration_;
  std::vector<fs::path> zoo_;
  TraceVerifyOptions options_;
  test::QuietContext quiet_;
};

TEST_F(VerifyTest, MeasuresEverySchemeBesideItsControl) {
  zoo_ = {GoodEntry("tag")};
  const Verification result = Run();
  std::vector<std::string> names;
  for (const SchemeResult& scheme : result.schemes) names.push_back(scheme.name);
  EXPECT_THAT(names, testing::ElementsAre(
                         "bf16", "naive", "naive+noise", "hadamard", "hadamard+noise", "clip-only",
                         "clip-only+noise", "hadamard-clip", "hadamard-clip+noise", "oscar:tag",
                         "oscar:tag+noise", "oscar-lloyd-max:tag", "oscar-lloyd-max:tag+noise"));
  for (const SchemeResult& scheme : result.schemes) {
    EXPECT_EQ(scheme.layers.size(), 2U);
    EXPECT_EQ(scheme.layers[1].layer, 5);
    for (const char* metric : {"key_error", "value_error", "logit_error", "attention_kl",
                               "output_error", "projected_output_error"}) {
      const MetricValue& value = scheme.metrics.at(metric);
      EXPECT_EQ(value.summary.n, 3) << metric;
      EXPECT_TRUE(value.summary.se.has_value());
      EXPECT_EQ(value.summary.mean == 0, scheme.name == "bf16") << scheme.name << " " << metric;
      // Each sequence's overall value is the mean over layers.
      for (size_t s = 0; s < 3; ++s) {
        EXPECT_DOUBLE_EQ(value.samples[s], (scheme.layers[0].metrics.at(metric).samples[s] +
                                            scheme.layers[1].metrics.at(metric).samples[s]) /
                                               2);
      }
    }
    double mass = 0;
    for (const MetricMap& region : scheme.regions) mass += region.at("mass").summary.mean;
    EXPECT_NEAR(mass, 1, 1e-12);
    EXPECT_EQ(scheme.regions[0].at("logit_error").summary.n, 3);
  }
  // The control has the scheme's own error norm, row by row.
  const SchemeResult& naive = Named(result.schemes, "naive");
  const SchemeResult& noise = Named(result.schemes, "naive+noise");
  EXPECT_TRUE(noise.control);
  for (const char* metric : {"key_error", "value_error"}) {
    EXPECT_NEAR(noise.metrics.at(metric).summary.mean, naive.metrics.at(metric).summary.mean,
                1e-5 * naive.metrics.at(metric).summary.mean);
  }
  EXPECT_NE(noise.metrics.at("attention_kl").summary.mean,
            naive.metrics.at("attention_kl").summary.mean);
  // A rotation by H with the public clip ratios is what the Hadamard row with clipping does.
  EXPECT_EQ(Named(result.schemes, "oscar:tag").metrics.at("attention_kl").samples,
            Named(result.schemes, "hadamard-clip").metrics.at("attention_kl").samples);
  // 12 exact of 60 tokens; K: 2 + 64/16 bits, V: 2 + 64/8.
  EXPECT_DOUBLE_EQ(naive.bits_per_element, ((6.0 * 16 + 10 * 8) / 24 * 48 + 16 * 12) / 60);
  EXPECT_EQ(Named(result.schemes, "bf16").bits_per_element, 16);
}

TEST_F(VerifyTest, AgreesWithTheMetricsCalledDirectly) {
  options_.schemes = {"naive"};
  const Verification result = Run();
  const TraceReader trace(options_.traces[0]);
  const LayerShape shape = trace.shape(5);
  const std::vector<float> q = trace.ReadRows(5, TraceReader::Rows::kQ, 1);
  const std::vector<float> k = trace.ReadRows(5, TraceReader::Rows::kK, 1);
  const std::vector<float> v = trace.ReadRows(5, TraceReader::Rows::kV, 1);
  std::vector<float> k_hat(k.size()), v_hat(v.size());
  const HeadRows<const float> k_rows{k.data(), 40, 2, 16}, v_rows{v.data(), 40, 2, 8};
  Reconstruct({}, k_rows, {k_hat.data(), 40, 2, 16}, 1);
  Reconstruct({}, v_rows, {v_hat.data(), 40, 2, 8}, 1);
  const std::vector<int64_t> queries = ChooseQueries(40, 16, kSmallWindows, true);
  const AttentionReference exact(shape, {q.data(), 40, 4, 16}, k_rows, v_rows, queries, 1);
  const AttentionErrors errors = exact.Compare(
      {{k_hat.data(), 40, 2, 16}, {v_hat.data(), 40, 2, 8}, {}, {}}, kSmallWindows, true, 1);
  const LayerMetrics& layer = Named(result.schemes, "naive").layers.at(1);
  EXPECT_EQ(layer.metrics.at("attention_kl").samples.at(1), errors.attention_kl.Mean());
  EXPECT_EQ(layer.metrics.at("output_error").samples.at(1), errors.output_error.Relative());
}

TEST_F(VerifyTest, EqualRunsGiveEqualRecordsWhateverTheThreads) {
  zoo_ = {GoodEntry("tag")};
  const std::vector<Gate> gates = ReadGates({});
  const std::string one = BuildRecord(Run(), gates).ToJson();
  quiet_.context.threads = 5;
  EXPECT_EQ(BuildRecord(Run(), gates).ToJson(), one);
  options_.seed = 2;
  EXPECT_NE(BuildRecord(Run(), gates).ToJson(), one);
}

TEST_F(VerifyTest, WithoutWindowsEverythingIsQuantised) {
  options_.schemes = {"naive"};
  const double with = Named(Run().schemes, "naive").metrics.at("key_error").summary.mean;
  options_.method.use_windows = false;
  const SchemeResult naive = Named(Run().schemes, "naive");
  EXPECT_GT(naive.metrics.at("key_error").summary.mean, with);
  EXPECT_GT(naive.regions[0].at("logit_error").summary.mean, 0);
  EXPECT_DOUBLE_EQ(naive.bits_per_element, (6.0 * 16 + 10 * 8) / 24);
}

TEST_F(VerifyTest, FlushKeepsMoreTokensExact) {
  options_.schemes = {"naive"};
  options_.controls = false;
  const Verification plain = Run();
  options_.method.windows.flush = 8;
  const Verification flush = Run();
  EXPECT_EQ(plain.settings.At("flush"), Value(1));
  EXPECT_EQ(flush.settings.At("flush"), Value(8));
  const auto key_error = [](const Verification& v) {
    return v.schemes[0].metrics.at("key_error").summary.mean;
  };
  // Sequences of 60, 40 and 50 tokens: 4, 4 and 6 of 48, 28 and 38 wait for the flush.
  EXPECT_LT(key_error(flush), key_error(plain));
  EXPECT_GT(flush.schemes[0].bits_per_element, plain.schemes[0].bits_per_element - 1e-12);
  EXPECT_THAT(VerifyText(BuildRecord(flush, ReadGates({})), false), HasSubstr("recent 8, flush 8"));
  EXPECT_THAT(VerifyText(BuildRecord(plain, ReadGates({})), false),
              testing::Not(HasSubstr("flush")));
  options_.method.windows = {4, 40, 17};
  EXPECT_THAT(Refusal().what(), HasSubstr("sink 4 and recent 40 with flush 17"));
}

TEST_F(VerifyTest, AsServedChangesTheWindowsToo) {
  zoo_ = {GoodEntry("tag")};
  options_.schemes = {"bf16", "oscar"};
  options_.method.as_served = true;
  const Verification served = Run();
  EXPECT_EQ(Named(served.schemes, "bf16").metrics.at("attention_kl").summary.mean, 0);
  // Rounding of H_16 is exact (1/4), but the rotated window rows are rounded to bfloat16.
  EXPECT_GT(Named(served.schemes, "oscar:tag").regions[2].at("logit_error").summary.mean, 0);
  options_.method.as_served = false;
  EXPECT_GT(Named(served.schemes, "oscar:tag").metrics.at("key_error").summary.mean, 0);
}

TEST_F(VerifyTest, RecordIsWhatTheReportReads) {
  zoo_ = {GoodEntry("tag")};
  const Value record = BuildRecord(Run(), ReadGates({}));
  EXPECT_EQ(record.At("schema"), Value("oscar.verify/1"));
  for (const char* key :
       {"tool", "inputs", "settings", "schemes", "gates", "verdict", "notes", "volatile"}) {
    EXPECT_NE(record.Find(key), nullptr) << key;
  }
  EXPECT_EQ(record.At("inputs").At("model").At("id"), Value("fake"));
  EXPECT_EQ(record.At("inputs").At("overlap").AsArray().at(0).At("known"), Value(true));
  EXPECT_EQ(record.At("settings").At("context_tokens"), Value(60));
  const std::string text = VerifyText(record, true);
  EXPECT_THAT(text, HasSubstr("oscar:tag"));
  EXPECT_THAT(text, HasSubstr("verdict: "));
  EXPECT_THAT(VerifyHtml(record), HasSubstr("oscar:tag"));
}

TEST_F(VerifyTest, ADamagedRotationFailsTheVerdict) {
  const std::vector<Gate> gates = ParseGates(
      R"({"schema": "oscar.gates/1", "gates": [{"name": "g", "scheme": "oscar",
          "relative_to": "hadamard-clip", "metric": "attention_kl", "comparison": "<=",
          "bound": 1.01}]})",
      "test");
  options_.schemes = {"oscar", "hadamard-clip"};
  zoo_ = {GoodEntry("good")};
  EXPECT_TRUE(Passed(BuildRecord(Run(), gates)));
  test::EntryParts parts = test::GoodEntry({2, 5}, calibration_);
  for (size_t i = 0; i < 16; ++i) parts.key.layers[5].rotation[i] *= 1.5F;
  zoo_ = {Entry("bad", parts)};
  const Value record = BuildRecord(Run(), gates);
  EXPECT_FALSE(Passed(record));
  EXPECT_EQ(record.At("verdict"), Value("fail"));
}

TEST_F(VerifyTest, TagsOfEqualNamesCarryTheFolderAboveWhereverTheProgramStarts) {
  options_.schemes = {"oscar"};
  fs::create_directories(folder_ / "other");
  GoodEntry("tag");
  GoodEntry("other/tag");
  const fs::path before = fs::current_path();
  fs::current_path(folder_);
  zoo_ = {"tag", "other/tag/"};
  const Verification result = Run();
  fs::current_path(before);
  EXPECT_NO_THROW(Named(result.schemes, "oscar:" + folder_.filename().string() + "/tag"));
  EXPECT_NO_THROW(Named(result.schemes, "oscar:other/tag"));
}

TEST_F(VerifyTest, RefusesTextSeenInCalibration) {
  // One of three sequences is the calibration text.
  TraceHeader seen = held_out_;
  seen.sequences.erase(seen.sequences.begin() + 1, seen.sequences.end());
  seen.ngram_hashes.clear();
  zoo_ = {Entry("seen", test::GoodEntry({2, 5}, seen))};
  const Error error = Refusal();
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("1 of 3 sequences"));
  EXPECT_THAT(error.hint(), HasSubstr("--allow-overlap"));
  options_.allow_overlap = true;
  EXPECT_THAT(Run().notes, testing::Contains(HasSubstr("seen in calibration")));
  // Shared 24-grams alone are enough.
  TraceHeader grams = held_out_;
  grams.sequences.resize(1);
  grams.sequences[0].sha256 = std::string(64, 'a');
  options_.allow_overlap = false;
  zoo_ = {Entry("grams", test::GoodEntry({2, 5}, grams))};
  EXPECT_THAT(Refusal().what(), HasSubstr("24-grams"));
}

TEST_F(VerifyTest, UnknownOverlapAndModelAreNoted) {
  test::EntryParts parts = test::GoodEntry({2, 5}, calibration_);
  parts.manifest = Value::Object{};
  zoo_ = {Entry("silent", parts)};
  options_.schemes = {"bf16", "oscar"};
  const Verification result = Run();
  EXPECT_THAT(result.notes, testing::Contains(HasSubstr("overlap")));
  EXPECT_THAT(result.notes, testing::Contains(HasSubstr("model is unknown")));
  EXPECT_EQ(result.inputs.At("overlap").AsArray().at(0).At("known"), Value(false));
  // Ids of a part of the calibration text do not prove that there is no overlap.
  parts = test::GoodEntry({2, 5}, calibration_);
  parts.manifest["calibration"]["token_ids_known"] = false;
  zoo_ = {Entry("partial", parts)};
  EXPECT_EQ(Run().inputs.At("overlap").AsArray().at(0).At("known"), Value(false));
}

TEST_F(VerifyTest, RefusesAnotherModelsRotations) {
  struct Row {
    std::string name, part;
    std::function<void(test::EntryParts&)> change;
  };
  const std::vector<Row> rows = {
      {"model", "model_id", [](auto& p) { p.manifest["model"]["id"] = "other"; }},
      {"config", "config_hash", [](auto& p) { p.manifest["model"]["config_hash"] = "1"; }},
      {"layer", "K rotation of layer 5 is missing",
       [](auto& p) {
         p.key.layers.erase(5);
         p.value.layers.erase(5);
       }},
      {"v layer", "V rotation of layer 2 is missing", [](auto& p) { p.value.layers.erase(2); }},
      {"dim", "head dim 8, but 16 in the traces",
       [](auto& p) {
         p.key = test::HadamardFile("qqt_r_h_pbr", 8, {2, 5});
       }},
      {"heads", "3 KV heads, but 2 in the traces", [](auto& p) {
         p.key.format_version = 2;
         p.key.source_grouping = "per_kv_head";
         for (auto& [id, layer] : p.key.layers) {
           const std::vector<float> one = layer.rotation;
           layer.heads = 3;
           layer.eigenvalues.clear();
           for (int copy = 1; copy < 3; ++copy) {
             layer.rotation.insert(layer.rotation.end(), one.begin(), one.end());
           }
         }
       }}};
  for (const Row& row : rows) {
    test::EntryParts parts = test::GoodEntry({2, 5}, calibration_);
    row.change(parts);
    zoo_ = {Entry(row.name, parts)};
    const Error error = Refusal();
    EXPECT_EQ(error.code(), ErrorCode::kMismatch) << row.name;
    EXPECT_THAT(error.what(), HasSubstr(row.part));
  }
}

TEST_F(VerifyTest, RefusesSwappedKeysAndValues) {
  const fs::path folder = GoodEntry("tag");
  fs::remove(folder / "manifest.json");
  fs::rename(folder / "k_rotation_qqt_r_h_pbr.pt", folder / "x.pt");
  fs::rename(folder / "v_rotation_sst_r_h_pbr.pt", folder / "k_rotation_qqt_r_h_pbr.pt");
  fs::rename(folder / "x.pt", folder / "v_rotation_sst_r_h_pbr.pt");
  zoo_ = {folder};
  EXPECT_EQ(Refusal().code(), ErrorCode::kMismatch);
}

TEST_F(VerifyTest, RefusesTracesInWhichNothingIsQuantised) {
  options_.method.windows = {64, 256};
  const Error error = Refusal();
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_THAT(error.what(), HasSubstr("sink 64 and recent 256"));
  EXPECT_THAT(error.what(), HasSubstr("60 tokens"));
  // Some sequences long enough: the short ones are left out with a note.
  options_.method.windows = {4, 40};
  EXPECT_THAT(Run().notes, testing::Contains(HasSubstr("1 sequence was left out: too short")));
}

// The shape of the fake trace itself: keys of 6 channels, values of 3.
TEST_F(VerifyTest, RefusesHeadDimsThatCannotBePacked) {
  TraceWriter writer(folder_ / "odd.trace.h5", held_out_, false, false);
  for (const int layer : held_out_.layers) writer.WriteLayer(test::FakeLayer(layer, held_out_));
  writer.Finish();
  options_.traces = {folder_ / "odd.trace.h5"};
  for (const char* schemes : {"all", "naive", "hadamard"}) {
    options_.schemes = {schemes};
    const Error error = Refusal();
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << schemes;
    EXPECT_THAT(error.what(), HasSubstr("odd.trace.h5: layer 2: head dim 6 of keys"));
  }
  options_.schemes = {"bf16"};
  EXPECT_EQ(Run().schemes[0].metrics.at("attention_kl").summary.mean, 0);
}

TEST_F(VerifyTest, LayersWhoseSlidingWindowIsRecentAreLeftOut) {
  const auto write = [&](const std::string& name, const std::map<int, int64_t>& windows) {
    options_.traces = {test::WriteVerifyTrace(folder_ / name, held_out_, true, windows)};
  };
  options_.schemes = {"naive"};
  options_.controls = false;
  write("mixed.trace.h5", {{2, 8}});
  const Verification mixed = Run();
  ASSERT_EQ(mixed.schemes[0].layers.size(), 1U);
  EXPECT_EQ(mixed.schemes[0].layers[0].layer, 5);
  EXPECT_THAT(mixed.notes, testing::Contains(HasSubstr("layer 2 left out")));
  EXPECT_THAT(mixed.notes, testing::Contains(HasSubstr("1 layer was measured")));
  // The other layer counts alone; its numbers are those of a run without the first one.
  const double kl = mixed.schemes[0].metrics.at("attention_kl").summary.mean;
  EXPECT_EQ(kl, mixed.schemes[0].layers[0].metrics.at("attention_kl").summary.mean);
  EXPECT_GT(kl, 0);

  write("all.trace.h5", {{2, 8}, {5, 7}});
  const Error error = Refusal();
  EXPECT_EQ(error.code(), ErrorCode::kData);
  EXPECT_THAT(error.what(), HasSubstr("sliding window of 8 tokens of layer 2"));
  EXPECT_THAT(error.what(), HasSubstr("8 recent tokens"));
  EXPECT_THAT(error.what(), HasSubstr("sink 4, longest sequence 60"));
  options_.method.use_windows = false;
  EXPECT_EQ(Run().schemes[0].layers.size(), 2U);
}

// One key more than the recent ones is quantised, and the errors of the rows that slid out of
// sight do not count.
TEST_F(VerifyTest, RowsBehindASlidingWindowDoNotCount) {
  options_.traces = {
      test::WriteVerifyTrace(folder_ / "narrow.trace.h5", held_out_, true, {{2, 9}, {5, 9}})};
  options_.schemes = {"naive"};
  options_.controls = false;
  const Verification result = Run();
  const TraceSet set(options_.traces);
  const KvScheme scheme = BuildScheme(MethodFromName("naive"), ShapesOf(set), options_.method, {});
  for (const LayerMetrics& layer : result.schemes[0].layers) {
    const LayerShape shape = set.traces()[0].shape(layer.layer);
    MeanSum expected;
    for (size_t s = 0; s < held_out_.sequences.size(); ++s) {
      const std::vector<float> k = set.traces()[0].ReadRows(layer.layer, TraceReader::Rows::kK, s);
      const int64_t tokens = held_out_.sequences[s].length;
      std::vector<float> k_hat(k.size());
      Reconstruct(scheme.ForLayer(layer.layer).key, {k.data(), tokens, 2, 16},
                  {k_hat.data(), tokens, 2, 16}, 1);
      double numerator = 0, denominator = 0;
      for (int64_t t = tokens - 9; t < tokens; ++t) {
        for (size_t i = static_cast<size_t>(t) * 32; i < static_cast<size_t>(t + 1) * 32; ++i) {
          const double exact = k[i];
          const double difference = t == tokens - 9 ? k_hat[i] - exact : 0;
          numerator += difference * difference;
          denominator += exact * exact;
        }
      }
      expected.Add({std::sqrt(numerator / denominator), 1});
    }
    EXPECT_EQ(shape.window, 9);
    // The same products summed in the same order.
    EXPECT_NEAR(layer.metrics.at("key_error").summary.mean, expected.Mean(), 1e-14);
  }
}

TEST_F(VerifyTest, RefusesUselessInputs) {
  zoo_ = {GoodEntry("tag")};
  zoo_.push_back(zoo_[0]);
  EXPECT_THAT(Refusal().what(), HasSubstr("given twice"));
  zoo_.resize(1);
  options_.traces.push_back(options_.traces[0]);
  EXPECT_THAT(Refusal().what(), HasSubstr("twice"));
  options_.traces = {};
  EXPECT_EQ(Refusal().code(), ErrorCode::kUsage);
  options_.traces = {
      test::WriteVerifyTrace(folder_ / "moments.trace.h5", test::FakeHeader({60}, 0, {2, 5}, 7))};
  EXPECT_THAT(Refusal().what(), HasSubstr("no complete sequence with rows"));
  TraceHeader prefix = test::FakeHeader({60}, 1, {2, 5}, 8);
  prefix.manifest["cached_prefix_len"] = 64;
  options_.traces = {test::WriteVerifyTrace(folder_ / "prefix.trace.h5", prefix)};
  EXPECT_THAT(Refusal().what(), HasSubstr("64 tokens in front"));
}

TEST_F(VerifyTest, TracesWithoutOutputProjectionSaySo) {
  options_.traces = {test::WriteVerifyTrace(folder_ / "import.trace.h5",
                                            test::FakeHeader({60}, 1, {2, 5}, 9), false)};
  options_.schemes = {"naive"};
  const Verification result = Run();
  EXPECT_FALSE(result.schemes[0].metrics.contains("projected_output_error"));
  EXPECT_THAT(result.notes, testing::Contains(HasSubstr("projected_output_error is absent")));
  EXPECT_FALSE(result.schemes[0].metrics.at("attention_kl").summary.se.has_value());
  EXPECT_THAT(result.notes, testing::Contains(HasSubstr("one sequence only")));
}

TEST_F(VerifyTest, SchemesAreSelectedByName) {
  const auto names = [&](const std::vector<std::string>& wanted) {
    options_.schemes = wanted;
    options_.controls = false;
    std::string list;
    for (const SchemeResult& scheme : Run().schemes) list += scheme.name + " ";
    return list;
  };
  EXPECT_EQ(names({"all"}), "bf16 naive hadamard clip-only hadamard-clip ");
  zoo_ = {GoodEntry("a"), GoodEntry("b")};
  EXPECT_EQ(names({"oscar", "bf16"}), "bf16 oscar:a oscar:b ");
  EXPECT_EQ(names({"oscar:b"}), "oscar:b ");
  zoo_.push_back(GoodEntry("sub/b"));
  EXPECT_EQ(names({"oscar"}), "oscar:a oscar:" + folder_.filename().string() + "/b oscar:sub/b ");
  // Lloyd-Max needs one group per row: left out of "all", an error by name.
  options_.method.group_size = 4;
  zoo_.resize(1);
  EXPECT_EQ(names({"all"}), "bf16 naive hadamard clip-only hadamard-clip oscar:a ");
  for (const std::vector<std::string>& bad : std::vector<std::vector<std::string>>{
           {"oscar-lloyd-max"}, {"quarot"}, {"all", "bf16"}, {"bf16", "bf16"}, {"oscar:c"}, {}}) {
    options_.schemes = bad;
    EXPECT_EQ(Refusal().code(), ErrorCode::kUsage);
  }
  zoo_.clear();
  options_.schemes = {"oscar"};
  EXPECT_THAT(Refusal().hint(), HasSubstr("--zoo"));
}

TEST_F(VerifyTest, AnEntryThatWasNotMeasuredFailsTheVerdict) {
  zoo_ = {GoodEntry("a"), GoodEntry("b")};
  const std::vector<Gate> gates = ParseGates(
      R"({"schema": "oscar.gates/1", "gates": [{"name": "g", "scheme": "bf16",
          "metric": "attention_kl", "comparison": "==", "bound": 0}]})",
      "text");
  options_.schemes = {"bf16", "oscar"};
  EXPECT_TRUE(Passed(BuildRecord(Run(), gates)));
  options_.schemes = {"bf16", "oscar:a"};
  const Value record = BuildRecord(Run(), gates);
  EXPECT_FALSE(Passed(record));
  EXPECT_THAT(record.At("notes").ToJson(), HasSubstr("b was given, but no scheme of it"));
  // Nor may "all" leave it out.
  options_.schemes = {"all"};
  options_.method.group_size = 7;
  EXPECT_EQ(Refusal().code(), ErrorCode::kUsage);
}

TEST_F(VerifyTest, StopsWhenCancelled) {
  quiet_.cancel.Cancel();
  EXPECT_EQ(Refusal().code(), ErrorCode::kInterrupted);
}

}  // namespace
}  // namespace oscar
