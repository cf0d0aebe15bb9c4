// Zoo folders: writing whole or not at all, finding the pair, refusing mix-ups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "oscar/core/files.h"
#include "oscar/core/hash.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const char* const kKeyName = "k_rotation_qqt_r_h_pbr.pt";
const char* const kValueName = "v_rotation_sst_r_h_pbr.pt";

ZooFile Key() { return test::RandomFile("qqt_r_h_pbr", {3, 7}, 16, 1); }
ZooFile ValueFile() { return test::RandomFile("sst_r_h_pbr", {3, 7}, 8, 2); }

Value Manifest() {
  return Value::FromJson(R"({"model":{"id":"toy","k_dim":16,"v_dim":8},
      "targets":{"key":"qqt","value":"sst"},
      "clip":{"key":{"3":0.96,"7":1},"value":{"3":0.9,"7":0.92},"mode":"search"},
      "layers":{"3":{},"7":{}}})",
                         "");
}

class Entry : public testing::Test {
 protected:
  void SetUp() override {
    const auto* info = testing::UnitTest::GetInstance()->current_test_info();
    root_ = test::FreshFolder(std::string("entry_") + info->name());
    folder_ = root_ / "model" / "tag";
  }
  void Write(bool force = false) {
    WriteZooEntry(folder_, Key(), ValueFile(), kKeyName, kValueName, Manifest(), force);
  }
  Error Refusal() {
    return test::ErrorOf([&] { ReadZooEntry(folder_); });
  }
  size_t FilesIn(const fs::path& folder) const {
    return static_cast<size_t>(
        std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
  }
  fs::path root_, folder_;
};

TEST_F(Entry, WrittenAndReadBack) {
  Write();
  EXPECT_EQ(FilesIn(folder_), 3U);
  EXPECT_EQ(FilesIn(folder_.parent_path()), 1U);  // nothing temporary is left
  const ZooEntry entry = ReadZooEntry(folder_);
  EXPECT_EQ(entry.Tag(), "tag");
  EXPECT_EQ(entry.key_path.filename(), kKeyName);
  EXPECT_EQ(entry.value.objective, "sst_r_h_pbr");
  EXPECT_EQ(entry.key.layers.at(7).rotation, Key().layers.at(7).rotation);
  EXPECT_EQ(entry.value.layers.at(3).eigenvalues, ValueFile().layers.at(3).eigenvalues);
  ASSERT_TRUE(entry.manifest);
  EXPECT_EQ(entry.manifest->At("schema").AsString(), "oscar.zoo/1");
  const Value& file = entry.manifest->At("files").At("key");
  EXPECT_EQ(file.At("sha256").AsString(), Sha256File((folder_ / kKeyName).string()));
  EXPECT_EQ(file.At("bytes").AsInt(), static_cast<int64_t>(fs::file_size(folder_ / kKeyName)));
  EXPECT_EQ(entry.KeyClip(3), 0.96);
  EXPECT_EQ(entry.KeyClip(7), 1.0);
  EXPECT_EQ(entry.ValueClip(7), 0.92);
  EXPECT_EQ(entry.KeyClip(4), std::nullopt);
  EXPECT_TRUE(ValidateEntry(entry).empty());
}

TEST_F(Entry, TagOfAFolderWithATrailingSlash) {
  ZooEntry entry;
  entry.folder = "a/b/tag/";
  EXPECT_EQ(entry.Tag(), "tag");
}

TEST_F(Entry, EqualRunsGiveEqualFolders) {
  Write();
  const std::string first = ReadTextFile(folder_ / "manifest.json");
  Write(true);
  EXPECT_EQ(ReadTextFile(folder_ / "manifest.json"), first);
}

TEST_F(Entry, OverwritesOnlyWhenForced) {
  Write();
  const std::string before = ReadTextFile(folder_ / "manifest.json");
  const Error error = test::ErrorOf([&] { Write(); });
  EXPECT_EQ(error.code(), ErrorCode::kIo);
  EXPECT_THAT(error.hint(), HasSubstr("--force"));
  EXPECT_EQ(ReadTextFile(folder_ / "manifest.json"), before);
  EXPECT_NO_THROW(Write(true));
  EXPECT_EQ(FilesIn(folder_.parent_path()), 1U);
}

TEST_F(Entry, AFailedWriteLeavesNothing) {
  ZooFile broken = ValueFile();
  broken.unreadable = {"lost"};
  EXPECT_THROW(WriteZooEntry(folder_, Key(), broken, kKeyName, kValueName, Manifest(), false),
               Error);
  EXPECT_FALSE(fs::exists(folder_));
  EXPECT_EQ(FilesIn(folder_.parent_path()), 0U);
}

TEST_F(Entry, SwappedFilesAreRefused) {
  EXPECT_EQ(test::ErrorOf([&] {
              WriteZooEntry(folder_, ValueFile(), Key(), kKeyName, kValueName, Manifest(), false);
            }).code(),
            ErrorCode::kMismatch);
  EXPECT_FALSE(fs::exists(folder_));
  fs::create_directories(folder_);
  WriteZooFile(folder_ / "k_rotation.pt", ValueFile());
  WriteZooFile(folder_ / "v_rotation.pt", Key());
  EXPECT_EQ(Refusal().code(), ErrorCode::kMismatch);
  EXPECT_THAT(Refusal().what(), HasSubstr("swapped"));
  WriteZooFile(folder_ / "k_rotation.pt", Key());
  EXPECT_EQ(Refusal().code(), ErrorCode::kMismatch);
}

TEST_F(Entry, FoldersWithoutManifestAreFoundByName) {
  fs::create_directories(folder_);
  EXPECT_THAT(Refusal().what(), HasSubstr("no K file"));
  for (const char* name : {"rotation_qqt_r_h_pbr.pt", "rotation.pt", "perhead.pt"}) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    WriteZooFile(folder_ / (std::string("k_") + name), Key());
    EXPECT_THAT(Refusal().what(), HasSubstr("no V file"));
    EXPECT_EQ(Refusal().code(), ErrorCode::kFormat);
    WriteZooFile(folder_ / (std::string("v_") + name), ValueFile());
    EXPECT_FALSE(ReadZooEntry(folder_).manifest);
    EXPECT_EQ(ReadZooEntry(folder_).KeyClip(3), std::nullopt);
  }
  WriteZooFile(folder_ / "k_rotation_other.pt", Key());
  EXPECT_EQ(Refusal().code(), ErrorCode::kFormat);
  EXPECT_THAT(Refusal().what(), HasSubstr("2 K files"));
}

TEST_F(Entry, AnIncompleteOrChangedFolderIsRefused) {
  Write();
  const std::string original = ReadTextFile(folder_ / kKeyName);
  std::string changed = original;
  changed[changed.size() / 2] ^= 1;
  WriteTextFile(folder_ / kKeyName, changed);
  EXPECT_EQ(Refusal().code(), ErrorCode::kMismatch);
  EXPECT_THAT(Refusal().what(), HasSubstr("sha256"));
  fs::remove(folder_ / kKeyName);
  EXPECT_EQ(Refusal().code(), ErrorCode::kFormat);
  EXPECT_THAT(Refusal().what(), HasSubstr("incomplete"));
}

TEST_F(Entry, AFolderOfEntriesSaysWhereOneIs) {
  Write();
  const fs::path zoo = folder_.parent_path() / "a_zoo";
  fs::remove_all(zoo);
  fs::create_directories(zoo / "model");
  fs::copy(folder_, zoo / "model" / "tag");
  fs::copy(folder_, zoo / "model" / "uvw");
  try {
    ReadZooEntry(zoo);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("entries are in folders below it"));
    EXPECT_EQ(error.hint(),
              "name the folder of one entry, such as " + (zoo / "model/tag").string());
  }
}

TEST_F(Entry, ABadManifestIsRefused) {
  Write();
  const Value good = Value::FromJson(ReadTextFile(folder_ / "manifest.json"), "manifest");
  const auto with = [&](const std::function<void(Value&)>& change) {
    Value manifest = good;
    change(manifest);
    WriteTextFile(folder_ / "manifest.json", manifest.ToJson());
  };
  WriteTextFile(folder_ / "manifest.json", "{");
  EXPECT_EQ(Refusal().code(), ErrorCode::kFormat);
  with([](Value& m) { m["schema"] = "oscar.zoo/9"; });
  EXPECT_EQ(Refusal().code(), ErrorCode::kUnsupported);
  with([](Value& m) { m.MutableObject().erase("files"); });
  EXPECT_EQ(Refusal().code(), ErrorCode::kFormat);
  with([](Value& m) { m["files"]["key"]["name"] = "../k_rotation.pt"; });
  EXPECT_THAT(Refusal().what(), HasSubstr("plain file name"));
  with([](Value& m) { m["clip"]["key"]["3"] = 1.5; });
  const ZooEntry entry = ReadZooEntry(folder_);
  EXPECT_EQ(test::ErrorOf([&] { entry.KeyClip(3); }).code(), ErrorCode::kFormat);
  with([](Value& m) { m["clip"]["key"] = Value::Array{}; });
  EXPECT_THAT(test::ErrorOf([&] { ReadZooEntry(folder_).KeyClip(3); }).what(),
              HasSubstr("clip.key is [], expected an object"));
  with([](Value& m) { m["clip"] = "on"; });
  EXPECT_THAT(test::ErrorOf([&] { ReadZooEntry(folder_).ValueClip(3); }).what(),
              HasSubstr("clip is \"on\", expected an object"));
}

TEST_F(Entry, FilesOfDifferentCalibrationsAreRefused) {
  fs::create_directories(folder_);
  ZooFile key = Key();
  ZooFile value = ValueFile();
  key.extra["calibration"]["generation_id"] = "a";
  value.extra["calibration"]["generation_id"] = "b";
  WriteZooFile(folder_ / "k_rotation.pt", key);
  WriteZooFile(folder_ / "v_rotation.pt", value);
  EXPECT_EQ(Refusal().code(), ErrorCode::kMismatch);
  EXPECT_THAT(Refusal().what(), HasSubstr("generation_id"));
  value.extra["calibration"]["generation_id"] = "a";
  WriteZooFile(folder_ / "v_rotation.pt", value);
  EXPECT_NO_THROW(ReadZooEntry(folder_));
}

TEST_F(Entry, AbsentFolder) {
  EXPECT_EQ(Refusal().code(), ErrorCode::kIo);
  EXPECT_THAT(Refusal().what(), HasSubstr("no such folder"));
}

TEST_F(Entry, ForceReplacesEntriesAndNothingElse) {
  Write(false);
  Write(true);
  WriteTextFile(folder_ / "notes.txt", "mine");
  try {
    Write(true);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kIo);
    EXPECT_THAT(e.what(), testing::HasSubstr("notes.txt"));
  }
  EXPECT_EQ(ReadTextFile(folder_ / "notes.txt"), "mine");
}

}  // namespace
}  // namespace oscar
