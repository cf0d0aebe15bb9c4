// The program as a user meets it: exit codes, messages, kill and resume, equal bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <thread>

#include "oscar/core/random.h"
#include "oscar/core/value.h"
#include "oscar/h5/file.h"
#include "oscar/trace/trace.h"
#include "support/golden.h"
#include "support/process.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using test::FreshFolder;
using test::ProcessResult;
using test::Slurp;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// A model among the tiny ones, whatever it is called, and its number of layers.
fs::path TinyModel() {
  for (const auto& entry : fs::directory_iterator(test::ModelOracle() / "tiny")) {
    const fs::path config = entry.path() / "config.json";
    if (!fs::exists(config)) continue;
    const std::string text = Slurp(config);
    for (const char* name : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
      if (text.find(name) != std::string::npos) return entry.path();
    }
  }
  return {};
}

// `count` lines of `length` random ids below 1000.
void WriteIds(const fs::path& file, int count, int length, uint64_t seed = 1) {
  Random random(DeriveSeed(seed, "ids"));
  std::ofstream out(file);
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < length; ++j) out << (j > 0 ? " " : "") << random.Below(1000);
    out << "\n";
  }
}

class Program : public ::testing::Test {
 protected:
  void SetUp() override {
    model_ = TinyModel();
    ASSERT_FALSE(model_.empty()) << "no tiny model under " << test::ModelOracle();
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = FreshFolder(std::string("program_") + info->name());
    WriteIds(folder_ / "ids.txt", 12, 300);
  }

  std::vector<std::string> Arguments(const std::string& out,
                                     const std::vector<std::string>& more = {}) const {
    std::vector<std::string> list = {"--model",     model_.string(),
                                     "--token-ids", (folder_ / "ids.txt").string(),
                                     "--threads",   "1",
                                     "--out",       (folder_ / out).string(),
                                     "--progress",  "never"};
    list.insert(list.end(), more.begin(), more.end());
    return list;
  }

  ProcessResult Run(const std::vector<std::string>& arguments) const {
    return test::Run("oscar-dump", arguments, folder_.string() + ".run");
  }

  pid_t Start(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {test::ProgramPath("oscar-dump").string()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return test::Start(command, folder_.string() + ".stdout", folder_.string() + ".stderr");
  }

  // Runs until `file` (in the .part folder of `out`) exists, then sends `signal`. A run that was
  // over before the signal came is repeated. Leaves what a run that died of it leaves.
  void Interrupt(const std::string& out, const std::string& file, int signal, int exit_code) const {
    const fs::path part = folder_ / (out + ".part");
    for (int attempt = 0; attempt < 10; ++attempt) {
      fs::remove_all(part);
      fs::remove(folder_ / out);
      const pid_t child = Start(Arguments(out));
      const auto limit = Clock::now() + std::chrono::seconds(60);
      while (!fs::exists(part / file) && !fs::exists(folder_ / out) && Clock::now() < limit) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      ::kill(child, signal);
      const int code = test::Wait(child);
      if (code == exit_code) return;
      ASSERT_EQ(code, 0) << Slurp(folder_.string() + ".stderr");
    }
    FAIL() << "no run lived long enough to be interrupted";
  }

  fs::path model_, folder_;
};

TEST_F(Program, TwoRunsGiveEqualBytesAndOtherIdsGiveOthers) {
  for (const char* out : {"a.trace.h5", "b.trace.h5"}) {
    const ProcessResult result = Run(Arguments(out));
    ASSERT_EQ(result.exit_code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr("3600 in 12 sequences"));
  }
  EXPECT_TRUE(Slurp(folder_ / "a.trace.h5") == Slurp(folder_ / "b.trace.h5"));
  WriteIds(folder_ / "ids.txt", 12, 300, 2);
  ASSERT_EQ(Run(Arguments("c.trace.h5")).exit_code, 0);
  EXPECT_FALSE(Slurp(folder_ / "a.trace.h5") == Slurp(folder_ / "c.trace.h5"));
  const TraceReader a(folder_ / "a.trace.h5");
  const TraceReader c(folder_ / "c.trace.h5");
  EXPECT_TRUE(FindOverlap(a.header(), a.header()).any());
  EXPECT_FALSE(FindOverlap(a.header(), c.header()).any());
}

TEST_F(Program, KilledAtRandomMomentsItResumesToEqualBytes) {
  auto begin = Clock::now();
  ASSERT_EQ(Run(Arguments("whole.trace.h5")).exit_code, 0);
  const auto whole_us =
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count();
  const std::string whole = Slurp(folder_ / "whole.trace.h5");
  Random random(DeriveSeed(11, "kill"));
  int kills = 0;
  int inside = 0;  // kills that left work behind
  for (int round = 0; round < 4 || (inside == 0 && round < 40); ++round) {
    for (int attempt = 0;; ++attempt) {
      ASSERT_LT(attempt, 30);
      // After some kills the run is left alone for longer, so that each round ends.
      const uint64_t span = static_cast<uint64_t>(whole_us) * (attempt < 4 ? 1 : 3);
      const pid_t child = Start(Arguments("killed.trace.h5", {"--resume"}));
      std::this_thread::sleep_for(std::chrono::microseconds(random.Below(span) + 1));
      ::kill(child, SIGKILL);
      const int code = test::Wait(child);
      if (code == 128 + SIGKILL) {
        ++kills;
        inside += fs::exists(folder_ / "killed.trace.h5.part") ? 1 : 0;
        continue;
      }
      ASSERT_EQ(code, 0) << Slurp(folder_.string() + ".stderr");
      break;
    }
    ASSERT_TRUE(Slurp(folder_ / "killed.trace.h5") == whole) << "round " << round;
    ASSERT_FALSE(fs::exists(folder_ / "killed.trace.h5.part"));
    fs::remove(folder_ / "killed.trace.h5");
  }
  EXPECT_GT(kills, 0);
  EXPECT_GT(inside, 0);
}

TEST_F(Program, FinishedLayersAreNotComputedAgain) {
  WriteIds(folder_ / "ids.txt", 60, 500);
  ASSERT_NO_FATAL_FAILURE(Interrupt("a.trace.h5", "state.bin", SIGKILL, 128 + SIGKILL));
  ASSERT_TRUE(fs::exists(folder_ / "a.trace.h5.part/layer_0.h5"));
  const ProcessResult result = Run(Arguments("a.trace.h5", {"--resume"}));
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.err, ::testing::ContainsRegex("continuing at layer [1-9]"));
}

TEST_F(Program, SigintEndsWith130AndTheRunGoesOnWithResume) {
  WriteIds(folder_ / "ids.txt", 60, 500);
  ASSERT_EQ(Run(Arguments("whole.trace.h5")).exit_code, 0);
  ASSERT_NO_FATAL_FAILURE(Interrupt("a.trace.h5", "header.h5", SIGINT, 130));
  const std::string message = Slurp(folder_.string() + ".stderr");
  EXPECT_THAT(message, HasSubstr("interrupted"));
  EXPECT_THAT(message, HasSubstr("--resume"));
  EXPECT_FALSE(fs::exists(folder_ / "a.trace.h5"));
  EXPECT_TRUE(fs::exists(folder_ / "a.trace.h5.part/header.h5"));
  ASSERT_EQ(Run(Arguments("a.trace.h5", {"--resume"})).exit_code, 0);
  EXPECT_TRUE(Slurp(folder_ / "a.trace.h5") == Slurp(folder_ / "whole.trace.h5"));
}

TEST_F(Program, ResumeWithOtherOptionsSaysWhatDiffers) {
  WriteIds(folder_ / "ids.txt", 30, 500);
  ASSERT_NO_FATAL_FAILURE(Interrupt("a.trace.h5", "header.h5", SIGKILL, 128 + SIGKILL));
  ProcessResult result = Run(Arguments("a.trace.h5", {"--resume", "--moments", "qq"}));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("moments"));
  EXPECT_THAT(result.err, HasSubstr("--force"));
  // A machine with other cores has another default.
  std::vector<std::string> arguments = Arguments("a.trace.h5", {"--resume"});
  *std::find(arguments.begin(), arguments.end(), "1") = "2";
  result = Run(arguments);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("hint: give --threads 1 "));
  result = Run(Arguments("a.trace.h5"));
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("unfinished run"));
}

TEST_F(Program, ChosenLayersAreTheSameAsInAFullRun) {
  ASSERT_EQ(Run(Arguments("all.trace.h5")).exit_code, 0);
  ASSERT_EQ(Run(Arguments("some.trace.h5", {"--layers", "1", "--rows-tokens", "600"})).exit_code,
            0);
  const TraceReader all(folder_ / "all.trace.h5");
  const TraceReader some(folder_ / "some.trace.h5");
  EXPECT_EQ(some.header().layers, std::vector<int>{1});
  EXPECT_EQ(some.row_tokens(), 600);
  for (const auto& [id, tensor] : some.ReadMoments(1).sums) {
    EXPECT_EQ(tensor.data, all.ReadMoments(1).At(id).data);
  }
}

TEST_F(Program, JsonHasTheManifestAndKeepsTimesApart) {
  const ProcessResult result = Run(Arguments("a.trace.h5", {"--json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Value json = Value::FromJson(result.out, "stdout");
  EXPECT_EQ(json.At("schema").AsString(), "oscar.dump/1");
  EXPECT_EQ(json.At("tokens").AsInt(), 3600);
  EXPECT_TRUE(json.At("volatile").At("seconds").is_number());
  const TraceReader reader(folder_ / "a.trace.h5");
  EXPECT_EQ(json.At("manifest"), reader.header().manifest);
  for (const char* key : {"tool",
                          "version",
                          "git_revision",
                          "model_id",
                          "config_hash",
                          "weights_fingerprint",
                          "tokenizer_hash",
                          "template",
                          "bos",
                          "files",
                          "seed",
                          "threads",
                          "device",
                          "dtype",
                          "capture_point",
                          "rope",
                          "cached_prefix_len",
                          "moments",
                          "window",
                          "tokens",
                          "rows_tokens",
                          "source"}) {
    EXPECT_NE(reader.header().manifest.Find(key), nullptr) << key;
  }
  EXPECT_EQ(reader.header().manifest.At("capture_point").AsString(), "post_rope");
}

TEST_F(Program, DryRunWritesNothing) {
  const ProcessResult result = Run(Arguments("a.trace.h5", {"--dry-run"}));
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("nothing was written"));
  EXPECT_THAT(result.out, HasSubstr("estimated"));
  EXPECT_FALSE(fs::exists(folder_ / "a.trace.h5"));
  EXPECT_FALSE(fs::exists(folder_ / "a.trace.h5.part"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("  output")));
  // What would stop the run itself is said, and stops nothing here.
  std::ofstream(folder_ / "a.trace.h5") << "kept";
  const ProcessResult again = Run(Arguments("a.trace.h5", {"--dry-run"}));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("a.trace.h5 exists already: the run needs --force"));
  fs::create_directory(folder_ / "b.trace.h5.part");
  const ProcessResult unfinished = Run(Arguments("b.trace.h5", {"--dry-run", "--json"}));
  EXPECT_THAT(Value::FromJson(unfinished.out, "stdout").At("obstacle").AsString(),
              HasSubstr("--resume"));
  EXPECT_EQ(Slurp(folder_ / "a.trace.h5"), "kept");
}

TEST_F(Program, BadInputHasTheRightCodeAndWritesNothing) {
  const std::string model = model_.string();
  const std::string ids = (folder_ / "ids.txt").string();
  const std::string out = (folder_ / "out.trace.h5").string();
  std::ofstream(folder_ / "outside.txt") << "5 6 99999999\n";
  std::ofstream(folder_ / "words.txt") << "five six\n";
  std::ofstream(folder_ / "empty.txt");
  fs::create_directory(folder_ / "empty_folder");
  struct Case {
    std::vector<std::string> arguments;
    int code;
    std::string part;
  };
  const std::vector<Case> cases = {
      {{}, 2, "--model or --import"},
      {{"--model", model, "--out", out}, 2, "--text or --token-ids"},
      {{"--model", model, "--token-ids", ids}, 2, "--out is missing"},
      {{"--model", model, "--token-ids", ids, "--out", out, "--layers", "0-99"}, 2, "no layer"},
      {{"--model", model, "--token-ids", ids, "--out", out, "--moments", "xx"}, 2, "xx"},
      {{"--model", model, "--token-ids", ids, "--out", out, "--device", "tpu"}, 2, "tpu"},
      {{"--model", model, "--token-ids", ids, "--out", out, "--unknown"}, 2, "unknown"},
      {{"--model", model, "--token-ids", ids, "--out", out, "--tokens", "-1"}, 2, "tokens"},
      {{"--model", "none", "--token-ids", ids, "--out", out}, 3, "none"},
      {{"--model", (folder_ / "empty_folder").string(), "--token-ids", ids, "--out", out},
       3,
       "config.json"},
      {{"--model", model, "--token-ids", "none.txt", "--out", out}, 3, "none.txt"},
      {{"--model", model, "--token-ids", (folder_ / "empty.txt").string(), "--out", out},
       3,
       "empty.txt"},
      {{"--model", model, "--token-ids", (folder_ / "words.txt").string(), "--out", out},
       3,
       "words.txt"},
      {{"--model", model, "--token-ids", (folder_ / "outside.txt").string(), "--out", out},
       3,
       "token id 99999999 is outside the vocabulary"},
      {{"--model", model, "--token-ids", ids, "--out", (folder_ / "no/out.h5").string()},
       3,
       "there is no folder"},
      {{"--model", model, "--token-ids", ids, "--out", folder_.string()}, 3, "it is a folder"},
      {{"--import", "none", "--q-heads", "4", "--kv-heads", "2", "--out", out},
       3,
       "no such folder"},
      {{"--import", folder_.string(), "--out", out}, 2, "--q-heads and --kv-heads"},
      {{"--import", folder_.string(), "--q-heads", "4", "--kv-heads", "2", "--out", out},
       3,
       "layer_<number>"},
  };
  const auto before = test::Snapshot(folder_);
  for (const Case& c : cases) {
    const ProcessResult result = Run(c.arguments);
    EXPECT_EQ(result.exit_code, c.code) << result.err;
    EXPECT_THAT(result.err, HasSubstr("oscar-dump: error: "));
    EXPECT_THAT(result.err, HasSubstr(c.part));
    EXPECT_EQ(result.out, "");
    EXPECT_TRUE(test::Snapshot(folder_) == before) << "files changed by: " << result.err;
  }
}

}  // namespace
}  // namespace oscar
