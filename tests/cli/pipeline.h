// The whole pipeline on the tiny llama model, from text to verdict, in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "oscar/core/files.h"
#include "oscar/core/value.h"
#include "support/golden.h"
#include "support/process.h"

namespace oscar::test {

// A text of numbers; from another start and step it shares nothing with this one.
inline void WriteNumbers(const std::filesystem::path& path, int64_t from, int64_t step) {
  std::string text;
  for (int64_t i = 0; i < 4000; ++i) {
    text += std::to_string(from + i * step % 1000003) + (i % 9 == 0 ? "\n" : " ");
  }
  WriteTextFile(path, text);
}

inline Value ReadRecord(const std::filesystem::path& path) {
  return Value::FromJson(Slurp(path), path.filename().string());
}

// The programs on the tiny llama model; all texts lie in one folder, outputs in others.
class Pipeline : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = FreshFolder(std::string("determinism_") +
                          testing::UnitTest::GetInstance()->current_test_info()->name());
    WriteNumbers(folder_ / "text.txt", 0, 7919);
    WriteNumbers(folder_ / "heldout.txt", 2000003, 104729);
  }

  // Paths in `arguments` are given by Path().
  std::string Run(const std::string& program, const char* threads,
                  std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--threads", threads});
    const ProcessResult result = test::Run(program, arguments, folder_ / program);
    // A verdict of "fail" is a result, too.
    if (result.exit_code != 0 && !(program == "oscar-verify" && result.exit_code == 1)) {
      throw std::runtime_error(result.err);
    }
    return result.out;
  }
  std::string Path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string Model() { return (ModelOracle() / "tiny" / "llama").string(); }

  void Dump(const std::string& run, const char* threads) const {
    std::filesystem::create_directories(folder_ / run);
    for (const std::string name : {"text", "heldout"}) {
      Run("oscar-dump", threads,
          {"--model", Model(), "--text", Path(name + ".txt"), "--tokens", "512", "--window", "128",
           "--rows-tokens", "256", "--out", Path(run + "/" + name + ".trace.h5")});
    }
  }
  void Calibrate(const std::string& traces, const std::string& run, const char* threads) const {
    std::filesystem::create_directories(folder_ / run);
    Run("oscar-calibrate", threads,
        {"--traces", Path(traces + "/text.trace.h5"), "--model-name", "tiny", "--sink", "4",
         "--recent", "16", "--out", Path(run + "/entry")});
  }
  // Returns what --json prints.
  std::string Verify(const std::string& inputs, const std::string& run, const char* threads,
                     bool with_model) const {
    std::vector<std::string> arguments = {"--zoo",    Path(inputs + "/entry"),
                                          "--traces", Path(inputs + "/heldout.trace.h5"),
                                          "--sink",   "4",
                                          "--recent", "16",
                                          "--report", Path(run + "/report"),
                                          "--json",   "--force"};
    if (with_model) {
      arguments.insert(arguments.end(), {"--model", Model(), "--text", Path("heldout.txt"),
                                         "--tokens", "256", "--window", "128"});
    }
    return Run("oscar-verify", threads, arguments);
  }
  // Everything; checks that --json and --report agree.
  void Everything(const std::string& run, const char* threads) const {
    Dump(run, threads);
    Calibrate(run, run, threads);
    const std::string printed = Verify(run, run, threads, true);
    EXPECT_EQ(Value::FromJson(printed, "standard output"), ReadRecord(Path(run + "/report")));
  }

  std::filesystem::path folder_;
};

}  // namespace oscar::test
