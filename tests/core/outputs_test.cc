#include "oscar/core/outputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <filesystem>
#include <string>
#include <vector>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class Outputs : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder_ / "model" / "deep");
    for (const char* name :
         {"a.txt", "b.txt", "model/config.json", "model/t.h5", "model/deep/x.pt"}) {
      WriteTextFile(folder_ / name, "x");
    }
    fs::create_symlink("a.txt", folder_ / "link.txt");
    fs::create_hard_link(folder_ / "a.txt", folder_ / "twin.txt");
  }
  // What is said, or nothing.
  std::string Refusal(const fs::path& input, const fs::path& output) const {
    try {
      RefuseInputsAsOutputs({"", folder_ / "b.txt", input}, {"", output});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(error.hint(), "");
      return error.what();
    }
    return "";
  }
  fs::path folder_ = test::FreshFolder("outputs");
};

TEST_F(Outputs, AnInputUnderAnyNameIsRefused) {
  for (const char* name : {"a.txt", "model/../a.txt", "link.txt", "twin.txt"}) {
    EXPECT_THAT(Refusal(folder_ / "a.txt", folder_ / name), HasSubstr("is an input")) << name;
  }
  EXPECT_THAT(Refusal(folder_ / "model", folder_ / "model"), HasSubstr("is an input"));
}

TEST_F(Outputs, FoldersAndWhatIsInThem) {
  EXPECT_THAT(Refusal(folder_ / "model/deep/x.pt", folder_ / "model"), HasSubstr("an input"));
  EXPECT_THAT(Refusal(folder_ / "model", folder_ / "model/config.json"), HasSubstr("is a file of"));
  EXPECT_THAT(Refusal(folder_ / "model", folder_ / "model/deep/x.pt"), HasSubstr("is a file of"));
}

TEST_F(Outputs, WhatIsNoPlainFileIsNeverReplaced) {
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  fs::create_symlink("nowhere", folder_ / "dangling");
  std::vector<fs::path> outputs = {folder_ / "pipe", folder_ / "link.txt", folder_ / "dangling"};
  // A device of the test's own, where it may make one: a fault here must not cost others theirs.
  if (::mknod((folder_ / "null").c_str(), S_IFCHR | 0600, makedev(1, 3)) == 0) {
    outputs.push_back(folder_ / "null");
  }
  for (const fs::path& output : outputs) {
    for (const bool directly : {true, false}) {
      try {
        if (directly) WriteTextFile(output, "x");
        if (!directly) RefuseInputsAsOutputs({folder_ / "b.txt"}, {output});
        ADD_FAILURE() << output;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << output << ": " << error.what();
      }
    }
  }
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.txt"));
  EXPECT_EQ(ReadTextFile(folder_ / "a.txt"), "x");
}

TEST_F(Outputs, EverythingElsePasses) {
  EXPECT_EQ(Refusal(folder_ / "a.txt", folder_ / "new.txt"), "");
  EXPECT_EQ(Refusal(folder_ / "missing", folder_ / "missing"), "");
  EXPECT_EQ(Refusal(folder_ / "a.txt", folder_ / "model/config.json"), "");
  EXPECT_EQ(Refusal(folder_ / "model", folder_ / "model/t.h5"), "");
  EXPECT_EQ(Refusal(folder_ / "model", folder_ / "model/new.json"), "");
  EXPECT_EQ(Refusal(folder_ / "model/deep", folder_ / "model/config.json"), "");
  // A name that begins alike is another folder.
  fs::create_directories(folder_ / "mod");
  EXPECT_EQ(Refusal(folder_ / "model/config.json", folder_ / "mod"), "");
}

}  // namespace
}  // namespace oscar
