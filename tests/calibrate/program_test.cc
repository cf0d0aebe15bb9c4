// oscar-calibrate as a user runs it: exit codes, messages, streams, and nothing left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "calibrate/synthetic_trace.h"
#include "oscar/core/value.h"
#include "oscar/zoo/entry.h"
#include "support/process.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::ProcessResult;
using test::WriteSynthetic;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class ProgramTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    traces_ = test::FreshFolder("calibrate-program-traces");
    WriteSynthetic({}, Trace("good"));
    WriteSynthetic({.sequences_with_rows = 0}, Trace("rowless"));
    WriteSynthetic({.lengths = {12}}, Trace("tiny"));
    WriteSynthetic({.seed = 2, .model_id = "other"}, Trace("other"));
    std::ofstream(Trace("text")) << "no trace";
    const std::string whole = test::Slurp(Trace("good"));
    std::ofstream(Trace("truncated"), std::ios::binary) << whole.substr(0, whole.size() / 2);
  }

  ProgramTest() : folder_(test::FreshFolder("calibrate-program")) {}

  static std::string Trace(const std::string& name) {
    return (traces_ / (name + ".trace.h5")).string();
  }

  // Arguments that work, unless `more` has the option too, and `more`.
  ProcessResult Run(const std::vector<std::string>& more, const std::string& trace = "good") {
    const std::pair<std::string, std::string> defaults[] = {
        {"--model-name", "synthetic"}, {"--out", Out()},  {"--sink", "4"}, {"--recent", "8"},
        {"--clip-positions", "8"},     {"--threads", "2"}};
    std::vector<std::string> arguments = {"--traces", Trace(trace)};
    for (const auto& [name, value] : defaults) {
      if (std::find(more.begin(), more.end(), name) != more.end()) continue;
      arguments.insert(arguments.end(), {name, value});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    return test::Run("oscar-calibrate", arguments, traces_.string() + "-run");
  }

  std::string Out() const { return (folder_ / "entry").string(); }

  static inline fs::path traces_;
  fs::path folder_;
};

TEST_F(ProgramTest, PrintsTheSummaryAndNothingElse) {
  const ProcessResult result = Run({"--clip-grid", "0.8:1:0.1"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("2 layers, 204 tokens"), HasSubstr("one pair for all"),
                                HasSubstr("recommended: one rotation per")));
  EXPECT_NO_THROW(ReadZooEntry(Out()));
}

TEST_F(ProgramTest, PrintsOneJsonObjectWhenAsked) {
  const ProcessResult result = Run({"--json", "--clip", "0.96,0.92", "--grouping", "head"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Value record = Value::FromJson(result.out, "stdout");
  EXPECT_EQ(record.At("schema"), Value("oscar.calibrate/1"));
  EXPECT_EQ(record.At("folder"), Value(Out()));
  EXPECT_EQ(record.At("manifest").At("grouping"), Value("head"));
}

TEST_F(ProgramTest, EveryCompositionAndTargetIsReachable) {
  const std::vector<std::vector<std::string>> cases = {
      {"--composition", "plain"},    {"--composition", "pbr"},
      {"--composition", "br"},       {"--composition", "br_h128"},
      {"--composition", "r_h"},      {"--composition", "h_pbr"},
      {"--composition", "h_r_pbr"},  {"--composition", "h_pbr_r"},
      {"--composition", "hadamard"}, {"--k-target", "ktk", "--v-target", "vtv"},
      {"--v-target", "svsv"},        {"--k-target", "none", "--v-target", "none"},
      {"--signs", "solver"},         {"--scale-dtype", "bf16", "--group-size", "8"}};
  for (std::vector<std::string> arguments : cases) {
    const std::string name = arguments[1];
    arguments.insert(arguments.end(), {"--clip", "off", "--force", "-q"});
    const ProcessResult result = Run(arguments);
    ASSERT_EQ(result.exit_code, 0) << name << ": " << result.err;
    const ZooEntry entry = ReadZooEntry(Out());
    for (const ZooFinding& finding : ValidateEntry(entry)) {
      EXPECT_FALSE(finding.error) << name << " " << finding.where << ": " << finding.what;
    }
  }
}

struct BadInput {
  std::vector<std::string> arguments;
  std::string trace;
  int exit_code;
  std::string message;
};

TEST_F(ProgramTest, RefusesBadInputAndWritesNothing) {
  const BadInput cases[] = {
      {{"--k-target", "sst"}, "good", 2, "qqt"},
      {{"--v-target", "qqt"}, "good", 2, "svsv"},
      {{"--grouping", "token"}, "good", 2, "layer"},
      {{"--composition", "uresidual"}, "good", 2, "r_h_pbr"},
      {{"--signs", "random"}, "good", 2, "canonical"},
      {{"--clip", "0.96"}, "good", 2, "K,V"},
      {{"--clip", "1.5,0.9"}, "good", 2, "K,V"},
      {{"--clip-grid", "1:0.8:0.1"}, "good", 2, "0 < LO <= HI <= 1"},
      {{"--clip-grid", "0.8:1"}, "good", 2, "LO:HI:STEP"},
      {{"--clip-sequences", "0"}, "good", 2, "clip-sequences"},
      {{"--sink", "-1"}, "good", 2, "-1"},
      {{"--threads", "-1"}, "good", 2, "threads"},
      {{"--model-name", ""}, "good", 2, "--model-name"},
      {{"--sink", "4", "--sink", "8"}, "good", 2, "one value"},
      {{"--min-tokens-per-dim", "nan"}, "good", 2, "min-tokens-per-dim"},
      {{"--scale-dtype", "fp8"}, "good", 2, "bf16"},
      {{"--group-size", "5"}, "good", 2, "layer 0"},
      {{"--traces", Trace("good")}, "good", 2, "same trace"},
      {{"--unknown"}, "good", 2, "--unknown"},
      {{}, "missing", 3, "missing.trace.h5"},
      {{}, "text", 3, "text.trace.h5"},
      {{}, "truncated", 3, "truncated.trace.h5"},
      {{}, "rowless", 3, "rows"},
      {{}, "tiny", 3, "12 tokens"},
      {{"--traces", Trace("other")}, "good", 3, "model_id"},
      {{"--sink", "60", "--recent", "60"}, "good", 3, "sink 60 and recent 60"},
      {{"--min-tokens-per-dim", "1000"}, "good", 3, "16000"},
  };
  for (const BadInput& bad : cases) {
    const ProcessResult result = Run(bad.arguments, bad.trace);
    const std::string name = bad.trace + " " + (bad.arguments.empty() ? "" : bad.arguments.front());
    EXPECT_EQ(result.exit_code, bad.exit_code) << name << ": " << result.err;
    EXPECT_THAT(result.err, AllOf(HasSubstr("oscar-calibrate: error: "), HasSubstr(bad.message)))
        << name;
    EXPECT_THAT(result.out, IsEmpty()) << name;
    EXPECT_TRUE(fs::is_empty(folder_)) << name;
  }
}

TEST_F(ProgramTest, KeepsAnExistingEntry) {
  ASSERT_EQ(Run({"--clip", "off", "-q"}).exit_code, 0);
  const auto before = test::Snapshot(Out());
  const ProcessResult result = Run({"--clip", "off"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("--force"));
  EXPECT_EQ(test::Snapshot(Out()), before);
}

}  // namespace
}  // namespace oscar
