// Files that mean the same although their bytes differ, and files that do not.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>
#include <optional>

#include "inspect/fits.h"
#include "oscar/core/error.h"
#include "oscar/inspect/inspect.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Diff : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = test::FreshFolder(std::string("diff_") + info->name());
    fit_ = test::FitMoment(test::RandomMoment(16, 3));
    context_.progress = &progress_;
  }
  ZooFile File(const test::Fit& fit, const std::string& composition = "r_h_pbr") const {
    return test::FileOf("qqt_" + composition, {{4, test::LayerFrom(fit, composition)}});
  }
  InspectReport Compare(const ZooFile& a, const ZooFile& b) {
    WriteZooFile(folder_ / "k_a.pt", a);
    WriteZooFile(folder_ / "k_b.pt", b);
    InspectOptions options;
    options.command = "diff";
    options.inputs = {folder_ / "k_a.pt", folder_ / "k_b.pt"};
    return RunInspect(options, context_);
  }
  std::string Verdict(const ZooFile& a, const ZooFile& b) {
    const InspectReport report = Compare(a, b);
    EXPECT_EQ(report.passed, report.record.At("verdict").AsString() != "different");
    // The order of the two does not matter.
    EXPECT_EQ(Compare(b, a).record.At("verdict"), report.record.At("verdict"));
    return report.record.At("verdict").AsString();
  }
  fs::path folder_;
  test::Fit fit_;
  NullProgress progress_;
  RunContext context_;
};

TEST_F(Diff, EqualAndRounded) {
  const ZooFile a = File(fit_);
  EXPECT_EQ(Verdict(a, a), "equal");
  ZooFile b = a;
  float& x = b.layers.at(4).rotation[5];
  x = std::nextafterf(x, 2);
  EXPECT_EQ(Verdict(a, b), "equal_within_rounding");
  for (float& entry : b.layers.at(4).rotation) entry = RoundToBFloat16(entry);
  EXPECT_EQ(Verdict(a, b), "equal_as_served");
}

TEST_F(Diff, PermutedAndNegatedColumns) {
  const ZooFile a = File(fit_);
  ZooFile b = a;
  std::vector<float>& r = b.layers.at(4).rotation;
  for (size_t row = 0; row < 16; ++row) {
    std::swap(r[row * 16 + 2], r[row * 16 + 9]);
    r[row * 16 + 5] = -r[row * 16 + 5];
  }
  EXPECT_EQ(Verdict(a, b), "equal_up_to_columns");
}

// Another public tool also calls its product r_h_pbr: descending eigenvectors times H with plain
// bit reversal. Its columns are those of the official file in other places with other signs.
TEST_F(Diff, TheOtherProductOfTheSameName) {
  const Eigen::Index dim = 16;
  Matrix h(dim, dim);
  for (Eigen::Index i = 0; i < dim; ++i) {
    for (Eigen::Index j = 0; j < dim; ++j) {
      h(i, j) = (std::popcount(static_cast<uint64_t>(i & j)) % 2 == 0 ? 1 : -1) / 4.0;
    }
  }
  const Matrix descending = fit_.basis.rowwise().reverse();
  const Matrix product = descending * h;
  Matrix other(dim, dim);
  for (Eigen::Index j = 0; j < dim; ++j) {
    const Eigen::Index reversed = (j & 1) << 3 | (j & 2) << 1 | (j & 4) >> 1 | (j & 8) >> 3;
    other.col(j) = product.col(reversed);
  }
  ZooFile b = File(fit_);
  const std::vector<float> before = b.layers.at(4).rotation;
  b.layers.at(4).rotation = test::Floats(other);
  EXPECT_EQ(Verdict(File(fit_), b), "equal_up_to_columns");
}

TEST_F(Diff, AnotherSolversSigns) {
  const ZooFile a = File(fit_);
  const ZooFile b = File(test::WithFlippedSigns(fit_, 5));
  EXPECT_EQ(Verdict(a, b), "same_calibration");
  // Also when one of the two is stored in another product.
  EXPECT_EQ(Verdict(a, File(fit_, "r_h")), "equal_up_to_columns");
  EXPECT_EQ(Verdict(a, File(fit_, "plain")), "same_calibration");
  // Without eigenvalues the eigenvectors themselves are compared.
  ZooFile c = a, d = b;
  c.layers.at(4).eigenvalues.clear();
  d.layers.at(4).eigenvalues.clear();
  EXPECT_EQ(Verdict(c, d), "same_calibration");
}

// Inside equal eigenvalues any orthonormal basis is as good as another.
TEST_F(Diff, AnotherBasisInsideEqualEigenvalues) {
  test::Fit tied = fit_;
  tied.eigenvalues[8] = tied.eigenvalues[7];
  test::Fit turned = tied;
  const Eigen::VectorXd x = tied.basis.col(7), y = tied.basis.col(8);
  turned.basis.col(7) = 0.6 * x + 0.8 * y;
  turned.basis.col(8) = -0.8 * x + 0.6 * y;
  EXPECT_EQ(Verdict(File(tied), File(turned)), "same_calibration");
  turned.eigenvalues = tied.eigenvalues = fit_.eigenvalues;
  EXPECT_EQ(Verdict(File(tied), File(turned)), "different");
}

TEST_F(Diff, Different) {
  const ZooFile a = File(fit_);
  EXPECT_EQ(Verdict(a, File(test::FitMoment(test::RandomMoment(16, 4)))), "different");
  ZooFile scaled = File(test::WithFlippedSigns(fit_, 5));
  for (float& x : scaled.layers.at(4).eigenvalues) x *= 1.001F;
  EXPECT_EQ(Verdict(a, scaled), "different");
  ZooFile other_target = File(test::WithFlippedSigns(fit_, 5));
  other_target.objective = "ktk_r_h_pbr";
  EXPECT_EQ(Verdict(a, other_target), "different");
  EXPECT_EQ(
      Verdict(a, test::FileOf(
                     "qqt_r_h_pbr",
                     {{4, test::LayerFrom(test::FitMoment(test::RandomMoment(8, 3)), "r_h_pbr")}})),
      "different");
  ZooFile more = a;
  more.layers[5] = a.layers.at(4);
  EXPECT_EQ(Verdict(a, more), "different");
  EXPECT_THAT(Compare(a, more).text, HasSubstr("only in the second: layers 5"));
}

TEST_F(Diff, MetadataIsListed) {
  ZooFile b = File(fit_);
  b.extra["calibration"]["tokens"] = 5;
  const InspectReport report = Compare(File(fit_), b);
  EXPECT_EQ(report.record.At("verdict").AsString(), "equal");
  EXPECT_THAT(report.text, HasSubstr("tokens"));
}

TEST_F(Diff, Folders) {
  const auto write = [&](const char* name, const ZooFile& key) {
    ZooFile value = File(fit_);
    value.objective = "sst_r_h_pbr";
    Value manifest;
    manifest["group_size"] = 16;
    manifest["volatile"]["time"] = name;
    WriteZooEntry(folder_ / name, key, value, "k_rotation.pt", "v_rotation.pt", manifest, false);
    return folder_ / name;
  };
  InspectOptions options;
  options.command = "diff";
  options.inputs = {write("a", File(fit_)), write("b", File(test::WithFlippedSigns(fit_, 1)))};
  const InspectReport report = RunInspect(options, context_);
  EXPECT_EQ(report.record.At("verdict").AsString(), "same_calibration");
  EXPECT_EQ(report.record.At("value").At("verdict").AsString(), "equal");
  EXPECT_TRUE(report.record.At("manifest").AsArray().empty());  // volatile parts do not count
  options.inputs[1] /= "k_rotation.pt";
  EXPECT_THROW(RunInspect(options, context_), Error);
}

class DiffOfEntries : public Diff {
 protected:
  static Value Manifest() {
    Value manifest;
    manifest["group_size"] = 16;
    manifest["scale_dtype"] = "f32";
    manifest["grouping"] = "layer";
    manifest["windows"] = Value::Object{{"sink", 64}, {"recent", 128}};
    manifest["targets"] = Value::Object{{"key", "qqt"}, {"value", "sst"}};
    for (const char* side : {"key", "value"}) {
      manifest["clip"][side] = Value::Object{{"4", 0.9}, {"5", 0.9}, {"7", 0.95}};
      manifest["clip"]["single"][side] = 0.9;
      for (int layer = 0; layer < 30; ++layer) {
        manifest["clip"]["curves"][side][std::to_string(layer)] = Value::Array{0.1, 0.2};
      }
    }
    return manifest;
  }
  fs::path Write(const std::string& name, const std::optional<Value>& manifest) {
    ZooFile key = File(fit_);
    for (const int64_t layer : {5, 7}) key.layers[layer] = key.layers.at(4);
    ZooFile value = key;
    value.objective = "sst_r_h_pbr";
    WriteZooEntry(folder_ / name, key, value, "k_rotation.pt", "v_rotation.pt",
                  manifest.value_or(Value()), false);
    if (!manifest) fs::remove(folder_ / name / "manifest.json");
    return folder_ / name;
  }
  InspectReport CompareEntries(const std::optional<Value>& a, const std::optional<Value>& b) {
    fs::remove_all(folder_ / "a");
    fs::remove_all(folder_ / "b");
    InspectOptions options;
    options.command = "diff";
    options.inputs = {Write("a", a), Write("b", b)};
    return RunInspect(options, context_);
  }
};

// Equal rotations that are served differently do not mean the same.
TEST_F(DiffOfEntries, EverySettingCounts) {
  const std::pair<std::string, std::function<void(Value&)>> changes[] = {
      {"windows.sink: 64 != 128", [](Value& m) { m["windows"]["sink"] = 128; }},
      {"windows.recent: 128 != null",
       [](Value& m) { m["windows"].MutableObject().erase("recent"); }},
      {"group_size: 16 != 8", [](Value& m) { m["group_size"] = 8; }},
      {"scale_dtype: \"f32\" != \"f16\"", [](Value& m) { m["scale_dtype"] = "f16"; }},
      {"targets.key: \"qqt\" != \"ktk\"", [](Value& m) { m["targets"]["key"] = "ktk"; }},
      {"grouping: \"layer\" != \"head\"", [](Value& m) { m["grouping"] = "head"; }},
      {"clip.single.value: 0.9 != 1", [](Value& m) { m["clip"]["single"]["value"] = 1; }},
      {"clip.value of layer 7: 0.95 != 0.5", [](Value& m) { m["clip"]["value"]["7"] = 0.5; }},
      {"clip.key of layer 4: 0.9 != none",
       [](Value& m) { m["clip"]["key"].MutableObject().erase("4"); }},
      {"clip.key of layers 4, 5: 0.9 != 0.5",
       [](Value& m) { m["clip"]["key"]["4"] = m["clip"]["key"]["5"] = 0.5; }}};
  for (const auto& [line, change] : changes) {
    Value changed = Manifest();
    change(changed);
    const InspectReport report = CompareEntries(Manifest(), changed);
    EXPECT_FALSE(report.passed) << line;
    EXPECT_EQ(report.record.At("verdict").AsString(), "different_settings") << line;
    EXPECT_EQ(report.record.At("key").At("verdict").AsString(), "equal");
    EXPECT_EQ(report.record.At("settings"), Value(Value::Array{line}));
    EXPECT_TRUE(report.record.At("manifest").AsArray().empty()) << line;
    EXPECT_THAT(report.text, testing::StartsWith("verdict: different_settings\nsettings: "));
    EXPECT_THAT(report.text, HasSubstr("\n  " + line + "\n"));
  }
}

// Without a size, a group is the head of 16 channels.
TEST_F(DiffOfEntries, ZeroIsOneGroupPerHead) {
  Value whole = Manifest(), half = Manifest();
  whole["group_size"] = 0;
  half["group_size"] = 8;
  EXPECT_EQ(CompareEntries(Manifest(), whole).record.At("verdict").AsString(), "equal");
  EXPECT_EQ(CompareEntries(half, whole).record.At("verdict").AsString(), "different_settings");
}

// Measured losses are many and serve nothing: they are counted in text, and whole in JSON.
TEST_F(DiffOfEntries, WhatIsNotServedDoesNotCount) {
  Value changed = Manifest();
  changed["composition"] = std::string(300, 'x');
  for (int layer = 0; layer < 30; ++layer) {
    changed["clip"]["curves"]["key"][std::to_string(layer)] = Value::Array{0.3};
  }
  const InspectReport report = CompareEntries(Manifest(), changed);
  EXPECT_TRUE(report.passed);
  EXPECT_EQ(report.record.At("verdict").AsString(), "equal");
  EXPECT_TRUE(report.record.At("settings").AsArray().empty());
  EXPECT_EQ(report.record.At("manifest").AsArray().size(), 31U);
  EXPECT_THAT(report.text, HasSubstr("\n  clip.curves: 30 differ\n"));
  EXPECT_THAT(report.text, HasSubstr("composition: null != \"xxx"));
}

TEST_F(DiffOfEntries, AMissingManifestIsSaid) {
  const InspectReport first = CompareEntries(Manifest(), std::nullopt);
  EXPECT_EQ(first.record.At("verdict").AsString(), "equal");
  EXPECT_EQ(first.record.At("manifest_in").AsString(), "first");
  EXPECT_THAT(first.text, HasSubstr("only the first has one, settings are not compared"));
  EXPECT_EQ(CompareEntries(std::nullopt, Manifest()).record.At("manifest_in").AsString(), "second");
  EXPECT_EQ(CompareEntries(Manifest(), Manifest()).record.At("manifest_in").AsString(), "both");
  EXPECT_EQ(CompareEntries(std::nullopt, std::nullopt).record.At("manifest_in").AsString(), "none");
}

TEST_F(Diff, LongMetadataIsCutWithAWord) {
  ZooFile a = File(fit_), b = File(fit_);
  a.extra["other"] = b.extra["other"] = 1;
  for (int i = 0; i < 25; ++i) b.extra[fmt::format("note_{:02}", i)] = std::string(200, 'y');
  const InspectReport report = Compare(a, b);
  EXPECT_THAT(report.text, HasSubstr("note_19: null != \"yyy"));
  EXPECT_THAT(report.text, HasSubstr("... and 5 more"));
  EXPECT_EQ(report.record.At("file").At("metadata").AsArray().size(), 25U);
}

}  // namespace
}  // namespace oscar
