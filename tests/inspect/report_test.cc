// show and validate: the record holds what the text says; wrong usage is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "oscar/core/error.h"
#include "oscar/core/hash.h"
#include "oscar/inspect/inspect.h"
#include "oscar/inspect/ranges.h"
#include "support/golden.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Report : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = test::FreshFolder(std::string("report_") + info->name());
    context_.progress = &progress_;
  }
  InspectReport Run(const std::string& command, const std::vector<fs::path>& inputs) {
    InspectOptions options;
    options.command = command;
    options.inputs = inputs;
    return RunInspect(options, context_);
  }
  fs::path WriteEntry() {
    Value manifest;
    manifest["model"]["id"] = "toy";
    manifest["layers"] = Value::Object{{"2", Value::Object()}, {"9", Value::Object()}};
    WriteZooEntry(folder_ / "entry", test::RandomFile("qqt_r_h_pbr", {2, 9}, 16, 1),
                  test::RandomFile("sst_r_h_pbr", {2, 9}, 8, 4), "k_rotation.pt", "v_rotation.pt",
                  manifest, false);
    return folder_ / "entry";
  }
  fs::path folder_;
  NullProgress progress_;
  RunContext context_;
};

TEST_F(Report, ShowDescribesAnEntry) {
  const fs::path entry = WriteEntry();
  const InspectReport report = Run("show", {entry, entry / "k_rotation.pt"});
  EXPECT_EQ(report.record.At("schema").AsString(), "oscar.zoo-report/1");
  const Value::Array& inputs = report.record.At("inputs").AsArray();
  ASSERT_EQ(inputs.size(), 2U);
  EXPECT_EQ(inputs[0].At("kind").AsString(), "entry");
  EXPECT_EQ(inputs[0].At("manifest").At("model").At("id").AsString(), "toy");
  const Value& key = inputs[0].At("key");
  EXPECT_EQ(key.At("target").AsString(), "qqt");
  EXPECT_EQ(key.At("composition").AsString(), "r_h_pbr");
  EXPECT_EQ(key.At("sha256").AsString(), Sha256File((entry / "k_rotation.pt").string()));
  const Value& layer = key.At("layers").AsArray()[1];
  EXPECT_EQ(layer.At("layer").AsInt(), 9);
  EXPECT_EQ(layer.At("dim").AsInt(), 16);
  // Eigenvalues 0.5, 1, ..., 8: (sum)^2 / sum of squares = 68^2 / 374.
  EXPECT_EQ(layer.At("eigenvalue_max").AsDouble(), 8);
  EXPECT_DOUBLE_EQ(layer.At("effective_rank").AsDouble(), 68.0 * 68.0 / 374.0);
  EXPECT_EQ(inputs[1].At("kind").AsString(), "file");
  EXPECT_EQ(inputs[1].At("file"), key);
  EXPECT_THAT(report.text, HasSubstr("objective qqt_r_h_pbr"));
  EXPECT_THAT(report.text, HasSubstr("model.id: \"toy\""));
}

TEST_F(Report, ShowDoesNotPassOnControlCharacters) {
  ZooFile file = test::RandomFile("qqt\x1b[31m\nred", {0}, 8, 1);
  file.extra["key\x07"] = "bell\x07";
  WriteZooFile(folder_ / "k.pt", file);
  const InspectReport report = Run("show", {folder_ / "k.pt"});
  EXPECT_THAT(report.text, testing::Not(HasSubstr("\x1b")));
  EXPECT_THAT(report.text, testing::Not(HasSubstr("\x07")));
  EXPECT_THAT(report.text, HasSubstr("qqt?[31m?red"));
}

TEST_F(Report, ValidateGivesVerdictsPerInput) {
  const fs::path entry = WriteEntry();
  std::ofstream(folder_ / "k_bad.pt") << "not a rotation file";
  ZooFile skewed = test::RandomFile("qqt_r_h_pbr", {0}, 8, 1);
  skewed.layers.at(0).rotation[0] += 0.5F;
  WriteZooFile(folder_ / "k_skewed.pt", skewed);
  EXPECT_TRUE(Run("validate", {entry}).passed);
  const InspectReport report =
      Run("validate", {entry, folder_ / "k_bad.pt", folder_ / "k_skewed.pt"});
  EXPECT_FALSE(report.passed);
  EXPECT_FALSE(report.record.At("passed").AsBool());
  const Value::Array& inputs = report.record.At("inputs").AsArray();
  EXPECT_TRUE(inputs[0].At("passed").AsBool());
  EXPECT_FALSE(inputs[1].At("passed").AsBool());
  EXPECT_FALSE(inputs[2].At("passed").AsBool());
  EXPECT_EQ(inputs[2].At("findings").AsArray()[0].At("severity").AsString(), "error");
  EXPECT_EQ(inputs[0].Find("provenance"), nullptr);
  EXPECT_THAT(report.text, HasSubstr("entry: valid"));
  EXPECT_THAT(report.text, HasSubstr("k_bad.pt: NOT valid"));
}

TEST(Ranges, OfLayers) {
  EXPECT_EQ(RangesOf({}), "");
  EXPECT_EQ(RangesOf({5}), "5");
  EXPECT_EQ(RangesOf({0, 1}), "0, 1");
  EXPECT_EQ(RangesOf({0, 1, 2, 3, 7, 9, 10, 11}), "0-3, 7, 9-11");
  EXPECT_EQ(RangesOf({4, 4, 5, 5, 6, 9}), "4-6, 9");  // once for every head
}

TEST_F(Report, UsageIsChecked) {
  const fs::path entry = WriteEntry();
  const auto code = [&](const InspectOptions& options) {
    return test::ErrorOf([&] { RunInspect(options, context_); }).code();
  };
  InspectOptions options;
  options.command = "frobnicate";
  options.inputs = {entry};
  EXPECT_EQ(code(options), ErrorCode::kUsage);
  for (const std::string& command : InspectCommands()) {
    options = {};
    options.command = command;
    EXPECT_EQ(code(options), ErrorCode::kUsage) << command;  // no input
    options.inputs = {folder_ / "absent", folder_ / "absent"};
    if (command == "env") options.inputs.pop_back();
    options.engine = command == "env" ? "sglang" : "";
    EXPECT_EQ(code(options), ErrorCode::kIo) << command;
    options.inputs = {entry, entry, entry};
    if (command == "diff" || command == "env") {
      EXPECT_EQ(code(options), ErrorCode::kUsage) << command;
    }
  }
  options = {};
  options.command = "env";
  options.inputs = {entry};
  EXPECT_EQ(code(options), ErrorCode::kUsage);  // no engine
  options.command = "show";
  options.engine = "sglang";
  EXPECT_EQ(code(options), ErrorCode::kUsage);
  options.engine = "";
  options.traces = {"x"};
  EXPECT_EQ(code(options), ErrorCode::kUsage);
}

}  // namespace
}  // namespace oscar
