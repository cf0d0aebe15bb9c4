// A rotation is tied to the trace it was fitted to, and to no other.
#include "oscar/inspect/provenance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inspect/fits.h"
#include "oscar/inspect/inspect.h"
#include "support/golden.h"
#include "trace/fake_trace.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Provenance : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = test::FreshFolder(std::string("provenance_") + info->name());
    test::WriteFakeTrace(Trace(1), test::FakeHeader({40, 30}, 1, {3, 7}, 1));
    test::WriteFakeTrace(Trace(2), test::FakeHeader({40, 30}, 1, {3, 7}, 2));
    context_.progress = &progress_;
  }
  fs::path Trace(int seed) const { return folder_ / ("t" + std::to_string(seed) + ".trace.h5"); }

  // A file fitted to the trace of `seed`.
  ZooFile Fitted(int seed, Target target, const std::string& composition) const {
    const TraceSet traces({Trace(seed)});
    std::map<int64_t, ZooLayer> layers;
    for (const int layer : traces.layers()) {
      const auto targets = FormTargets(traces.Moments(layer), target, Grouping::kLayer);
      layers[layer] = test::LayerFrom(test::FitMoment(targets.front()), composition);
    }
    return test::FileOf(std::string(TargetName(target)) + "_" + composition, layers);
  }
  ZooFile FittedPerHead(int seed, Target target) const {
    const TraceSet traces({Trace(seed)});
    ZooFile file = test::FileOf(std::string(TargetName(target)) + "_r_h_pbr", {});
    file.source_grouping = "per_kv_head";
    file.format_version = 2;
    for (const int id : traces.layers()) {
      ZooLayer& layer = file.layers[id];
      for (const Matrix& c : FormTargets(traces.Moments(id), target, Grouping::kHead)) {
        const ZooLayer head = test::LayerFrom(test::FitMoment(c), "r_h_pbr");
        layer.rotation.insert(layer.rotation.end(), head.rotation.begin(), head.rotation.end());
        layer.dim = head.dim;
        ++layer.heads;
      }
    }
    return file;
  }
  std::vector<ProvenanceResult> Check(const ZooFile& file, int seed, ZooSide side = ZooSide::kKey) {
    return CheckProvenance(file, side, TraceSet({Trace(seed)}), context_);
  }

  fs::path folder_;
  NullProgress progress_;
  RunContext context_;
};

TEST_F(Provenance, FitsItsOwnTrace) {
  for (const char* composition :
       {"plain", "br", "br_h128", "r_h", "h_r_pbr", "h_pbr_r", "r_h_pbr"}) {
    for (const Target target : {Target::kQqt, Target::kKtk, Target::kSst, Target::kVtv}) {
      const auto results = Check(Fitted(1, target, composition), 1);
      ASSERT_EQ(results.size(), 2U);
      for (const ProvenanceResult& result : results) {
        EXPECT_EQ(result.verdict, ProvenanceVerdict::kFits)
            << composition << " " << result.reason << " " << result.off_diagonal;
        EXPECT_LE(result.off_diagonal, result.tolerance);
        EXPECT_GE(result.eigenvalue_error, 0);
        EXPECT_LE(result.eigenvalue_error, result.tolerance);
        EXPECT_GT(result.alignment, 0.999);
      }
    }
  }
}

// A second moment with equal eigenvalues: P ranks equal ones in their order.
TEST_F(Provenance, EqualEigenvalues) {
  LayerCapture layer = test::FakeLayer(3, test::FakeHeader({40, 30}, 1, {3}, 1));
  MomentTensor& qq = layer.moments.sums.at(Moment::kQq);
  const int64_t dim = layer.moments.shape.k_dim;
  std::fill(qq.data.begin(), qq.data.end(), 0.0);
  for (int64_t i = 0; i < dim; ++i) {
    qq.data[static_cast<size_t>(i * dim + i)] = i < 4 ? 1.0 : 5.0;
  }
  layer.moments.sums.erase(Moment::kSst);
  layer.moments.sums.erase(Moment::kSstWeight);
  layer.moments.sst_qq_hash.clear();
  TraceWriter writer(Trace(5), test::FakeHeader({40, 30}, 1, {3}, 1), false, false);
  writer.WriteLayer(layer);
  writer.Finish();
  const ProvenanceResult result = Check(Fitted(5, Target::kQqt, "r_h_pbr"), 5).front();
  EXPECT_EQ(result.verdict, ProvenanceVerdict::kFits) << result.reason;
}

TEST_F(Provenance, OtherDataOtherTargetOtherCompositionDoNotFit) {
  const ZooFile file = Fitted(1, Target::kQqt, "r_h_pbr");
  for (const ProvenanceResult& result : Check(file, 2)) {
    EXPECT_EQ(result.verdict, ProvenanceVerdict::kOther);
    EXPECT_GT(result.off_diagonal, 100 * result.tolerance);
    EXPECT_LT(result.alignment, 0.99);
  }
  for (const char* wrong : {"ktk_r_h_pbr", "qqt_r_h", "qqt_plain"}) {
    ZooFile renamed = file;
    renamed.objective = wrong;
    EXPECT_EQ(Check(renamed, 1).front().verdict, ProvenanceVerdict::kOther) << wrong;
  }
}

TEST_F(Provenance, WrongEigenvaluesAreNoticed) {
  ZooFile file = Fitted(1, Target::kQqt, "r_h_pbr");
  for (float& x : file.layers.at(7).eigenvalues) x *= 1.01F;
  const auto results = Check(file, 1);
  EXPECT_EQ(results[0].verdict, ProvenanceVerdict::kFits);
  EXPECT_EQ(results[1].verdict, ProvenanceVerdict::kOther);
  EXPECT_THAT(results[1].reason, HasSubstr("eigenvalues"));
}

TEST_F(Provenance, ShufflingAnEntryIsNoticed) {
  ZooFile file = Fitted(1, Target::kQqt, "r_h_pbr");
  std::swap(file.layers.at(3), file.layers.at(7));
  for (const auto& result : Check(file, 1)) {
    EXPECT_EQ(result.verdict, ProvenanceVerdict::kOther);
  }
}

TEST_F(Provenance, PerHead) {
  const ZooFile file = FittedPerHead(1, Target::kKtk);
  const auto own = Check(file, 1);
  ASSERT_EQ(own.size(), 4U);
  for (const auto& result : own) {
    EXPECT_EQ(result.verdict, ProvenanceVerdict::kFits);
    EXPECT_EQ(result.eigenvalue_error, -1);
  }
  EXPECT_EQ(own[3].head, 1);
  EXPECT_EQ(own[3].layer, 7);
  for (const auto& result : Check(file, 2)) {
    EXPECT_EQ(result.verdict, ProvenanceVerdict::kOther);
  }
}

TEST_F(Provenance, WhatCannotBeKnownIsSaid) {
  const auto reason = [&](const ZooFile& file) {
    const auto results = Check(file, 1);
    EXPECT_EQ(results.front().verdict, ProvenanceVerdict::kNotRecoverable);
    return results.front().reason;
  };
  EXPECT_THAT(reason(Fitted(1, Target::kQqt, "h_pbr")), HasSubstr("composition"));
  EXPECT_THAT(reason(Fitted(1, Target::kQqt, "pbr")), HasSubstr("composition"));
  ZooFile file = Fitted(1, Target::kQqt, "r_h_pbr");
  file.objective = "hadamard";
  EXPECT_THAT(reason(file), HasSubstr("no target"));
  file.objective = "svsv_r_h_pbr";  // the fake traces hold no oo
  EXPECT_THAT(reason(file), HasSubstr("svsv"));
  ZooFile strange = test::FileOf("qqt_r_h_pbr", {{99, file.layers.at(3)}});
  EXPECT_THAT(reason(strange), HasSubstr("no such layer"));
}

TEST_F(Provenance, AnotherHeadDimIsAnotherModel) {
  const ZooFile file = Fitted(1, Target::kVtv, "r_h_pbr");
  ZooFile renamed = file;
  renamed.objective = "ktk_r_h_pbr";
  EXPECT_EQ(Check(renamed, 1).front().verdict, ProvenanceVerdict::kOther);
  EXPECT_THAT(Check(renamed, 1).front().reason, HasSubstr("another model"));
}

TEST_F(Provenance, ThroughTheUseCase) {
  WriteZooEntry(folder_ / "entry", Fitted(1, Target::kQqt, "r_h_pbr"),
                Fitted(1, Target::kSst, "r_h_pbr"), "k_rotation_qqt_r_h_pbr.pt",
                "v_rotation_sst_r_h_pbr.pt",
                Value::FromJson(R"({"model":{"id":"fake","config_hash":"c0ffee"}})", ""), false);
  InspectOptions options;
  options.command = "validate";
  options.inputs = {folder_ / "entry"};
  options.traces = {Trace(1)};
  InspectReport report = RunInspect(options, context_);
  EXPECT_TRUE(report.passed) << report.text;
  EXPECT_THAT(report.text, HasSubstr("provenance of key: 2 fits"));
  const Value& input = report.record.At("inputs").AsArray().front();
  EXPECT_EQ(input.At("provenance").AsArray().size(), 4U);
  EXPECT_EQ(input.At("provenance").AsArray().front().At("verdict").AsString(), "fits");
  options.traces = {Trace(2)};
  report = RunInspect(options, context_);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.text, HasSubstr("other model or other data"));
  // A single file is enough.
  options.inputs = {folder_ / "entry" / "v_rotation_sst_r_h_pbr.pt"};
  EXPECT_FALSE(RunInspect(options, context_).passed);
  options.traces = {Trace(1)};
  EXPECT_TRUE(RunInspect(options, context_).passed);
}

TEST_F(Provenance, NumbersThatWereNotMeasuredAreNotShown) {
  ZooFile file = Fitted(1, Target::kVtv, "r_h_pbr");  // of another head dim than keys
  file.objective = "ktk_r_h_pbr";
  WriteZooFile(folder_ / "k_other.pt", file);
  InspectOptions options;
  options.command = "validate";
  options.inputs = {folder_ / "k_other.pt"};
  options.traces = {Trace(1)};
  const InspectReport report = RunInspect(options, context_);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.text, HasSubstr("another model"));
  EXPECT_THAT(report.text, testing::Not(HasSubstr("off-diagonal")));
  EXPECT_THAT(report.text, testing::Not(HasSubstr("alignment")));
  const Value& input = report.record.At("inputs").AsArray().front();
  const Value& first = input.At("provenance").AsArray().front();
  for (const char* key : {"off_diagonal", "tolerance", "alignment", "eigenvalue_error"}) {
    EXPECT_TRUE(first.At(key).is_null()) << key;
  }
}

TEST_F(Provenance, AnotherModelIsNamed) {
  WriteZooEntry(folder_ / "entry", Fitted(1, Target::kQqt, "r_h_pbr"),
                Fitted(1, Target::kSst, "r_h_pbr"), "k_rotation_qqt_r_h_pbr.pt",
                "v_rotation_sst_r_h_pbr.pt",
                Value::FromJson(R"({"model":{"id":"fake","config_hash":"beef"}})", ""), false);
  InspectOptions options;
  options.command = "validate";
  options.inputs = {folder_ / "entry"};
  options.traces = {Trace(1)};
  const InspectReport report = RunInspect(options, context_);
  EXPECT_FALSE(report.passed);
  EXPECT_THAT(report.text, HasSubstr("config_hash \"beef\", the traces say \"c0ffee\""));
}

}  // namespace
}  // namespace oscar
