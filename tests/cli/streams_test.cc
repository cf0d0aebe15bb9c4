// Whole programs with a standard output, a standard error or a disk that does not take what they
// write: an error and its exit code, and no file that looks finished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "support/golden.h"
#include "support/process.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// `redirections` and what stands before the program are the shell's.
test::ProcessResult Shell(const std::string& before, const std::string& program,
                          const std::string& arguments, const std::string& redirections) {
  const fs::path scratch = test::FreshFolder("streams");
  const fs::path out = scratch.string() + ".stdout", err = scratch.string() + ".stderr";
  const std::string line = before + "exec '" + test::ProgramPath(program).string() + "' " +
                           arguments + " " + redirections;
  test::ProcessResult result;
  result.exit_code = test::Wait(test::Start({"/bin/sh", "-c", line}, out, err));
  result.out = test::Slurp(out);
  result.err = test::Slurp(err);
  return result;
}

TEST(Streams, AnOutputThatTakesNothingIsAnErrorHoweverLongTheText) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  // --help is longer than the buffer of a stream, --version is shorter.
  for (const char* arguments : {"--help", "--version", "--print-config"}) {
    const test::ProcessResult result = Shell("", "oscar-calibrate", arguments, ">/dev/full");
    EXPECT_EQ(result.exit_code, 3) << arguments;
    EXPECT_THAT(result.err, HasSubstr("cannot write to standard output")) << arguments;
  }
}

TEST(Streams, AClosedOutputIsAnError) {
  const test::ProcessResult result = Shell("", "oscar-calibrate", "--help", ">&-");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("cannot write to standard output"));
}

TEST(Streams, MessagesThatNobodyCanReadChangeNoExitCode) {
  EXPECT_EQ(Shell("", "oscar-calibrate", "--traces", "2>&-").exit_code, 2);
  EXPECT_EQ(Shell("", "oscar-zoo", "show no-such-file", "2>&-").exit_code, 3);
  EXPECT_EQ(Shell("", "oscar-zoo", "show no-such-file --json", "2>&-").exit_code, 3);
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  EXPECT_EQ(Shell("", "oscar-calibrate", "--traces", "2>/dev/full").exit_code, 2);
  EXPECT_EQ(Shell("", "oscar-zoo", "show no-such-file", "2>/dev/full").exit_code, 3);
}

TEST(Streams, VerboseSaysOptionsAndCostsOnStandardError) {
  const std::string zoo = "validate '" + test::ZooSamples().string() + "/Qwen3.5-4B/hadamard' ";
  const test::ProcessResult plain = Shell("", "oscar-zoo", zoo, "");
  const test::ProcessResult verbose = Shell("", "oscar-zoo", zoo + "--verbose --threads 3", "");
  EXPECT_EQ(verbose.out, plain.out);
  EXPECT_EQ(plain.err, "");
  EXPECT_THAT(verbose.err, HasSubstr("oscar-zoo: --threads 3 (command line)"));
  EXPECT_THAT(verbose.err, HasSubstr("oscar-zoo: 3 threads"));
  EXPECT_THAT(verbose.err, testing::ContainsRegex("oscar-zoo: total: .* s, [0-9]+ MiB of memory"));
  EXPECT_EQ(Shell("", "oscar-zoo", zoo + "--verbose --quiet", "").err, "");
}

#ifdef OSCAR_TEST_TORCH
std::string DumpArguments(const fs::path& out) {
  return "--model '" + (test::ModelOracle() / "tiny" / "qwen3").string() + "' --token-ids '" +
         (out.parent_path() / "ids.txt").string() + "' --out '" + out.string() + "'";
}

void WriteIds(const fs::path& folder) {
  std::string ids;
  for (int i = 0; i < 200; ++i) ids += std::to_string(i * 7 % 1000) + " ";
  std::ofstream(folder / "ids.txt") << ids << "\n";
}

// No descriptor of a closed stream is handed to a file, where messages would end up inside it.
TEST(Streams, MessagesNeverReachAFile) {
  const fs::path folder = test::FreshFolder("streams_closed");
  WriteIds(folder);
  const std::string more = " --progress always --verbose --json";
  ASSERT_EQ(Shell("", "oscar-dump", DumpArguments(folder / "a.h5") + more, "").exit_code, 0);
  EXPECT_EQ(Shell("", "oscar-dump", DumpArguments(folder / "b.h5") + more, "2>&-").exit_code, 0);
  EXPECT_EQ(Shell("", "oscar-dump", DumpArguments(folder / "c.h5") + more, "0<&- >&-").exit_code,
            3);
  EXPECT_EQ(test::Slurp(folder / "a.h5"), test::Slurp(folder / "b.h5"));
  EXPECT_EQ(test::Slurp(folder / "a.h5"), test::Slurp(folder / "c.h5"));
}

// A limit on the size of a file stands for a full disk: writes fail in the same place.
TEST(Streams, AFullDiskIsOneClearLineAndCanBeResumed) {
  const fs::path folder = test::FreshFolder("streams_full");
  WriteIds(folder);
  ASSERT_EQ(Shell("", "oscar-dump", DumpArguments(folder / "whole.h5"), "").exit_code, 0);
  for (const int blocks : {1, 20, 200, 1000}) {
    const fs::path out = folder / "t.h5";
    const std::string limit = "ulimit -f " + std::to_string(blocks) + "; ";
    const test::ProcessResult result =
        Shell(limit, "oscar-dump", DumpArguments(out) + " --quiet", "");
    EXPECT_EQ(result.exit_code, 3) << blocks << ": " << result.err;
    EXPECT_THAT(result.err, HasSubstr("oscar-dump: error: cannot "));
    EXPECT_THAT(result.err, HasSubstr("File too large"));
    EXPECT_THAT(result.err, Not(HasSubstr("time = ")));
    EXPECT_LE(std::ranges::count(result.err, '\n'), 2) << result.err;  // the error and a hint
    EXPECT_FALSE(fs::exists(out));
    // What to do about it, once there is something to continue.
    if (fs::exists(folder / "t.h5.part" / "header.h5")) {
      EXPECT_THAT(result.err, HasSubstr("--resume"));
    }
    const test::ProcessResult resumed =
        Shell("", "oscar-dump", DumpArguments(out) + " --resume", "");
    EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(test::Slurp(out), test::Slurp(folder / "whole.h5"));
    fs::remove(out);
  }
}

TEST(Streams, AFullDiskLeavesNoHalfEntryAndNoHalfReport) {
  const fs::path folder = test::FreshFolder("streams_full_entry");
  WriteIds(folder);
  ASSERT_EQ(Shell("", "oscar-dump", DumpArguments(folder / "t.h5"), "").exit_code, 0);
  const std::string traces = "--sink 4 --recent 16 --traces '" + (folder / "t.h5").string() + "' ";
  const auto before = test::Snapshot(folder);
  test::ProcessResult result =
      Shell("ulimit -f 1; ", "oscar-calibrate",
            traces + "--min-tokens-per-dim 0 --clip off --model-name m --out '" +
                (folder / "entry").string() + "'",
            "");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("File too large"));
  EXPECT_EQ(test::Snapshot(folder), before);
  result = Shell(
      "ulimit -f 1; ", "oscar-verify",
      traces + "--schemes bf16,naive --quiet --report '" + (folder / "r.json").string() + "'", "");
  EXPECT_EQ(result.exit_code, 3) << result.err;
  EXPECT_THAT(result.err, HasSubstr("File too large"));
  EXPECT_EQ(test::Snapshot(folder), before);
}
#endif

}  // namespace
}  // namespace oscar
