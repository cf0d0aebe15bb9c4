// scripts/verify_kernels.sh on the CPU twins: the verification that a GPU machine runs on its
// kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/pipeline.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(VerifyKernelsScript, MeasuresEveryLayerAndEverySchemeOfTheKernels) {
  const fs::path folder = test::FreshFolder("verify-kernels-script");
  const pid_t child = test::Start(
      {"/bin/bash", std::string(OSCAR_SOURCE_DIR) + "/scripts/verify_kernels.sh", "--build-dir",
       OSCAR_BINARY_DIR, "--device", "twin", "--layers", "2", "--out", (folder / "out").string()},
      folder / "stdout", folder / "stderr");
  ASSERT_EQ(test::Wait(child), 0) << test::Slurp(folder / "stderr");
  const std::string text = test::Slurp(folder / "out/verify.txt");
  EXPECT_EQ(text, test::Slurp(folder / "stdout"));
  EXPECT_EQ(Count(text, "$ oscar-verify"), 4U);
  EXPECT_EQ(Count(text, "\nverdict: pass"), 4U);
  EXPECT_EQ(text.find(folder.string()), std::string::npos);  // no folder of this machine

  const Value record = test::ReadRecord(folder / "out/verify.json");
  std::vector<std::string> names;
  for (const Value& scheme : record.At("schemes").AsArray()) {
    names.push_back(scheme.At("name").AsString());
    EXPECT_EQ(scheme.At("layers").AsArray().size(), 2U) << names.back();
  }
  EXPECT_THAT(names, ElementsAre("bf16", "naive", "hadamard", "clip-only", "hadamard-clip",
                                 "oscar:layer", "oscar:head"));
}

TEST(VerifyKernelsScript, SaysHowToBuildWhatIsMissing) {
  const fs::path folder = test::FreshFolder("verify-kernels-missing");
  const std::string build = (folder / "build").string();
  const pid_t child =
      test::Start({"/bin/bash", std::string(OSCAR_SOURCE_DIR) + "/scripts/verify_kernels.sh",
                   "--build-dir", build, "--out", (folder / "out").string()},
                  folder / "stdout", folder / "stderr");
  EXPECT_EQ(test::Wait(child), 2);
  const std::string error = test::Slurp(folder / "stderr");
  EXPECT_THAT(error, HasSubstr(build + "/bin/oscar-verify is missing\nhint: first set "));
  EXPECT_THAT(error, HasSubstr("hint: cmake --build " + build +
                               " --target oscar-verify oscar-calibrate synthetic_traces\n"));
  EXPECT_FALSE(fs::exists(folder / "out"));
}

}  // namespace
}  // namespace oscar
