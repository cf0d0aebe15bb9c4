// Files that PyTorch wrote (tests/golden/torchfile/make.py) and published rotation files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "oscar/core/files.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/torchfile/zip_reader.h"
#include "support/golden.h"
#include "torchfile/describe.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

fs::path Golden() { return fs::path(OSCAR_SOURCE_DIR) / "tests" / "golden" / "torchfile"; }

Value ReadExpected(const fs::path& folder) {
  const fs::path path = folder / "expected.json";
  return Value::FromJson(ReadTextFile(path), path.string());
}

TEST(TorchGolden, ReadsWhatTorchReads) {
  const Value expected = ReadExpected(Golden() / "good");
  ASSERT_FALSE(expected.AsObject().empty());
  for (const auto& [name, content] : expected.AsObject()) {
    const TorchValue value = ReadTorchFile(Golden() / "good" / (name + ".pt"));
    EXPECT_EQ(test::Compare(value, content, name), "");
  }
}

TEST(TorchGolden, StorageCheckDoesNotChangeTheResult) {
  const Value expected = ReadExpected(Golden() / "good");
  for (const auto& [name, content] : expected.AsObject()) {
    const TorchValue value =
        ReadTorchFile(Golden() / "good" / (name + ".pt"), {.check_storage_crc = false});
    EXPECT_EQ(test::Compare(value, content, name), "");
  }
}

TEST(TorchGolden, TensorsOverOneStorageShareIt) {
  const TorchValue value = ReadTorchFile(Golden() / "good" / "shared.pt");
  const auto& whole = std::get<TorchTensor>(value.Find("whole")->data);
  const auto& tail = std::get<TorchTensor>(value.Find("tail")->data);
  EXPECT_EQ(whole.storage_key, tail.storage_key);
  EXPECT_EQ(whole.storage, tail.storage);
  EXPECT_EQ(tail.storage_offset, 8);
}

TEST(TorchGolden, TensorsOutliveTheFileAndAreAligned) {
  for (const char* name : {"contiguous", "dtypes", "zip64_deflated", "no_root"}) {
    TorchValue value = ReadTorchFile(Golden() / "good" / (std::string(name) + ".pt"));
    std::vector<TorchTensor> tensors;
    if (value.is_tensor()) {
      tensors.push_back(std::get<TorchTensor>(value.data));
    } else {
      for (const auto& [key, item] : *std::get<std::shared_ptr<TorchValue::Dict>>(value.data)) {
        tensors.push_back(std::get<TorchTensor>(item.data));
      }
    }
    value = {};
    for (const TorchTensor& tensor : tensors) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.storage) % DTypeSize(tensor.dtype), 0U);
      EXPECT_EQ(tensor.ToDoubles().size(), static_cast<size_t>(tensor.elements()));
    }
  }
}

TEST(TorchGolden, RefusesByName) {
  const fs::path folder = Golden() / "refused";
  const Value expected = ReadExpected(folder);
  ASSERT_FALSE(expected.AsObject().empty());
  for (const auto& [name, word] : expected.AsObject()) {
    const fs::path path = folder / (name + ".pt");
    const Error error = test::ErrorOf([&] { ReadTorchFile(path); });
    EXPECT_THAT(error.what(), testing::HasSubstr(word.AsString())) << name;
    EXPECT_THAT(error.what(), testing::StartsWith(path.string())) << name;
    EXPECT_THAT(error.what(), testing::Not(testing::HasSubstr("\n"))) << name;
    EXPECT_TRUE(error.code() == ErrorCode::kFormat || error.code() == ErrorCode::kUnsupported);
  }
}

TEST(TorchGolden, OtherFormatsAreRecognised) {
  const fs::path folder = test::FreshFolder("torch_other_formats");
  const auto message = [&](const std::string& content) {
    const fs::path path = folder / "file.pt";
    std::ofstream(path, std::ios::binary) << content;
    return std::string(test::ErrorOf([&] { ReadTorchFile(path); }).what());
  };
  EXPECT_THAT(message(""), testing::HasSubstr("empty"));
  EXPECT_THAT(message("P"), testing::HasSubstr("expected a zip archive"));
  EXPECT_THAT(message("PK\x03\x04"), testing::HasSubstr("truncated"));
  EXPECT_THAT(message("version https://git-lfs.github.com/spec/v1\n"), testing::HasSubstr("LFS"));
  EXPECT_THAT(message("<!DOCTYPE html>"), testing::HasSubstr("web page"));
  EXPECT_THAT(message("GGUF...."), testing::HasSubstr("GGUF"));
  EXPECT_THAT(message("\x80\x02}."), testing::HasSubstr("bare pickle"));
  EXPECT_EQ(test::ErrorOf([&] { ReadTorchFile(folder / "absent.pt"); }).code(), ErrorCode::kIo);
  EXPECT_EQ(test::ErrorOf([&] { ReadTorchFile(folder); }).code(), ErrorCode::kIo);
}

std::vector<fs::path> SampleFiles() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(test::ZooSamples())) {
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Every member of a published file is reproduced byte for byte and at the same place, except the
// serialization id, whose hash function is torch's own.
TEST(TorchGolden, PublishedFilesAreRewrittenByteForByte) {
  const std::vector<fs::path> files = SampleFiles();
  ASSERT_FALSE(files.empty());
  const fs::path copy = test::FreshFolder("torch_rewrite") / "copy.pt";
  for (const fs::path& path : files) {
    ZipReader original(path);
    const std::string name = original.members().front().name;
    WriteTorchFile(copy, test::ToOut(ReadTorchFile(path)), name.substr(0, name.find('/')));
    ZipReader rewritten(copy);
    ASSERT_EQ(original.members().size(), rewritten.members().size()) << path;
    EXPECT_EQ(fs::file_size(path), fs::file_size(copy)) << path;
    for (size_t i = 0; i < original.members().size(); ++i) {
      const ZipMember& a = original.members()[i];
      const ZipMember& b = rewritten.members()[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_EQ(a.data_offset, b.data_offset) << a.name;
      EXPECT_EQ(a.bytes, b.bytes) << a.name;
      if (a.name.ends_with(".data/serialization_id")) continue;
      const OwnedBytes x = original.Read(a, true, 1);
      const OwnedBytes y = rewritten.Read(b, true, 1);
      EXPECT_TRUE(std::equal(x.bytes.begin(), x.bytes.end(), y.bytes.begin(), y.bytes.end()))
          << path << " " << a.name;
    }
  }
}

}  // namespace
}  // namespace oscar
