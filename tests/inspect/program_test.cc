// oscar-zoo as a user runs it: exit codes, streams, JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "oscar/core/value.h"
#include "support/golden.h"
#include "support/process.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path Scratch() {
  static const fs::path kFolder = test::FreshFolder("oscar_zoo_program");
  return kFolder;
}

test::ProcessResult Zoo(const std::vector<std::string>& arguments) {
  return test::Run("oscar-zoo", arguments, Scratch() / "run");
}

std::string Sample(const char* name) { return (test::ZooSamples() / name).string(); }

TEST(OscarZoo, ExitCodes) {
  const std::string good = Sample("Qwen3-4B-Thinking-2507");
  std::ofstream(Scratch() / "k_bad.pt") << "PK";
  EXPECT_EQ(Zoo({"show", good}).exit_code, 0);
  EXPECT_EQ(Zoo({"validate", good}).exit_code, 0);
  EXPECT_EQ(Zoo({"validate", good, Scratch() / "k_bad.pt"}).exit_code, 1);
  EXPECT_EQ(Zoo({"show", Scratch() / "k_bad.pt"}).exit_code, 3);
  EXPECT_EQ(Zoo({"diff", good, good}).exit_code, 0);
  EXPECT_EQ(Zoo({"diff", Sample("Qwen3.5-4B/calibrated"), Sample("Qwen3.5-4B/hadamard")}).exit_code,
            1);
  EXPECT_EQ(Zoo({"env", good, "--engine", "sglang"}).exit_code, 0);
  EXPECT_EQ(Zoo({"env", good, "--engine", "vllm"}).exit_code, 3);
  EXPECT_EQ(Zoo({"env", good, "--engine", "tensorrt"}).exit_code, 2);
  EXPECT_EQ(Zoo({"env", good}).exit_code, 2);
  EXPECT_EQ(Zoo({}).exit_code, 2);
  EXPECT_EQ(Zoo({"shw", good}).exit_code, 2);
  EXPECT_EQ(Zoo({"show", "--traces", "x", good}).exit_code, 2);
  EXPECT_EQ(Zoo({"show", (Scratch() / "absent").string()}).exit_code, 3);
}

TEST(OscarZoo, ResultsOnStdoutMessagesOnStderr) {
  const auto shown = Zoo({"show", Sample("Qwen3.5-4B/calibrated")});
  EXPECT_THAT(shown.out, HasSubstr("objective qqt_r_h_pbr"));
  EXPECT_EQ(shown.err, "");
  const auto refused = Zoo({"show", (Scratch() / "absent").string()});
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, testing::StartsWith("oscar-zoo: error: "));
}

TEST(OscarZoo, JsonIsOneObjectOfTheSchema) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"show", Sample("Qwen3.5-4B/hadamard"), "--json"},
        {"validate", Sample("Qwen3.5-4B/hadamard"), "--json"},
        {"diff", Sample("Qwen3.5-4B/hadamard"), Sample("Qwen3.5-4B/calibrated"), "--json"},
        {"env", Sample("Qwen3.5-4B/hadamard"), "--engine", "sglang", "--json"}}) {
    const auto result = Zoo(arguments);
    const Value record = Value::FromJson(result.out, "stdout");
    EXPECT_EQ(record.At("schema").AsString(), "oscar.zoo-report/1");
    EXPECT_EQ(record.At("command").AsString(), arguments[0]);
    EXPECT_EQ(Zoo(arguments).out, result.out);  // equal runs, equal bytes
  }
}

// The printed lines are a shell script that sets exactly the variables of the record.
TEST(OscarZoo, EnvironmentIsAShellScript) {
  const auto text = Zoo({"env", Sample("Qwen3-4B-Thinking-2507"), "--engine", "sglang"});
  const fs::path script = Scratch() / "env.sh";
  std::ofstream(script) << text.out << "env | grep ^SGLANG_ | sort > " << Scratch() / "set.txt"
                        << "\n";
  ASSERT_EQ(std::system(("env -i PATH=/usr/bin:/bin sh " + script.string()).c_str()), 0);
  const auto json = Zoo({"env", Sample("Qwen3-4B-Thinking-2507"), "--engine", "sglang", "--json"});
  std::string expected;
  const Value record = Value::FromJson(json.out, "stdout");
  for (const auto& [name, value] : record.At("variables").AsObject()) {
    expected += name + "=" + value.AsString() + "\n";
  }
  EXPECT_EQ(test::Slurp(Scratch() / "set.txt"), expected);
}

TEST(OscarZoo, HelpAndVersionNeedNothing) {
  EXPECT_THAT(Zoo({"--help"}).out, HasSubstr("validate"));
  EXPECT_THAT(Zoo({"--version"}).out, HasSubstr("2605.17757"));
}

}  // namespace
}  // namespace oscar
