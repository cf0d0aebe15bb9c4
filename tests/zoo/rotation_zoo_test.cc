// Regression over every entry that is committed under rotation_zoo/: valid as it stands, and no
// longer when it is damaged.
#include <gtest/gtest.h>

#include <algorithm>

#include "oscar/core/error.h"
#include "oscar/core/files.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;

fs::path Zoo() { return fs::path(OSCAR_SOURCE_DIR) / "rotation_zoo"; }

// Folders that hold .pt files.
std::vector<fs::path> Entries() {
  std::vector<fs::path> folders;
  for (const auto& entry : fs::recursive_directory_iterator(Zoo())) {
    if (entry.path().extension() == ".pt") folders.push_back(entry.path().parent_path());
  }
  std::sort(folders.begin(), folders.end());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  return folders;
}

bool HasErrors(const fs::path& folder) {
  try {
    const auto findings = ValidateEntry(ReadZooEntry(folder));
    return std::any_of(findings.begin(), findings.end(),
                       [](const ZooFinding& finding) { return finding.error; });
  } catch (const Error&) {
    return true;
  }
}

TEST(RotationZoo, EveryEntryIsValid) {
  if (!fs::exists(Zoo())) GTEST_SKIP() << "no folder rotation_zoo";
  const std::vector<fs::path> entries = Entries();
  ASSERT_FALSE(entries.empty()) << "rotation_zoo holds no entry";
  for (const fs::path& folder : entries) {
    const ZooEntry entry = ReadZooEntry(folder);
    EXPECT_TRUE(entry.manifest) << folder << " has no manifest.json";
    for (const ZooFinding& finding : ValidateEntry(entry)) {
      EXPECT_FALSE(finding.error) << finding.where << ": " << finding.what;
    }
    for (const auto& [id, layer] : entry.key.layers) {
      EXPECT_NO_THROW(entry.KeyClip(id)) << folder;
    }
  }
}

TEST(RotationZoo, ADamagedCopyIsNotValid) {
  if (!fs::exists(Zoo())) GTEST_SKIP() << "no folder rotation_zoo";
  ASSERT_FALSE(Entries().empty());
  const fs::path copy = test::FreshFolder("rotation_zoo_damaged");
  for (const fs::path& folder : Entries()) {
    const ZooEntry entry = ReadZooEntry(folder);
    const auto fresh = [&] {
      fs::remove_all(copy);
      fs::copy(folder, copy, fs::copy_options::recursive);
    };
    fresh();
    EXPECT_FALSE(HasErrors(copy)) << folder;
    // A flipped bit, a cut end, a missing half, another element in a file of its own.
    std::string bytes = ReadTextFile(entry.key_path);
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    WriteTextFile(copy / entry.key_path.filename(), bytes);
    EXPECT_TRUE(HasErrors(copy)) << folder;
    fresh();
    fs::resize_file(copy / entry.value_path.filename(), fs::file_size(entry.value_path) - 1);
    EXPECT_TRUE(HasErrors(copy)) << folder;
    fresh();
    fs::remove(copy / entry.value_path.filename());
    EXPECT_TRUE(HasErrors(copy)) << folder;
    fresh();
    fs::remove(copy / "manifest.json");
    ZooFile key = entry.key;
    key.layers.begin()->second.rotation[0] += 0.01F;
    WriteZooFile(copy / entry.key_path.filename(), key);
    EXPECT_TRUE(HasErrors(copy)) << folder;
  }
}

}  // namespace
}  // namespace oscar
