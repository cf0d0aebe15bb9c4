// The published files of tests/golden/zoo_samples: read, validated, written back equal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "oscar/core/files.h"
#include "oscar/torchfile/torchfile.h"
#include "oscar/zoo/entry.h"
#include "support/golden.h"
#include "support/torch_python.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::vector<fs::path> Samples() {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(test::ZooSamples())) {
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<fs::path> Folders() {
  std::vector<fs::path> folders;
  for (const fs::path& file : Samples()) folders.push_back(file.parent_path());
  folders.erase(std::unique(folders.begin(), folders.end()), folders.end());
  return folders;
}

// Layers, matrices and metadata equal, element by element.
void ExpectEqual(const ZooFile& a, const ZooFile& b) {
  EXPECT_EQ(a.format_version, b.format_version);
  EXPECT_EQ(a.objective, b.objective);
  EXPECT_EQ(a.source_grouping, b.source_grouping);
  EXPECT_EQ(a.extra, b.extra);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (const auto& [id, layer] : a.layers) {
    const ZooLayer& other = b.layers.at(id);
    EXPECT_EQ(layer.dim, other.dim);
    EXPECT_EQ(layer.heads, other.heads);
    EXPECT_EQ(layer.rotation, other.rotation);
    EXPECT_EQ(layer.eigenvalues, other.eigenvalues);
  }
}

TEST(ZooSamples, AreValid) {
  ASSERT_FALSE(Folders().empty());
  for (const fs::path& folder : Folders()) {
    for (const ZooFinding& finding : ValidateEntry(ReadZooEntry(folder))) {
      EXPECT_FALSE(finding.error) << finding.where << ": " << finding.what;
    }
  }
}

TEST(ZooSamples, OrthogonalityAsPublished) {
  // Rounding entries with unit roundoff u moves each sum of products by at most 2 u + u^2: u is
  // 2^-24 in float32. In bfloat16 (u = 2^-8) the errors average out over the sum.
  for (const fs::path& path : Samples()) {
    for (const auto& [id, layer] : ReadZooFile(path).layers) {
      const ZooOrthogonality found = MeasureOrthogonality(layer);
      EXPECT_LE(found.as_stored, 0x1p-23) << path << " layer " << id;
      EXPECT_LE(found.as_served, 3e-3) << path << " layer " << id;
      EXPECT_GE(found.as_served, found.as_stored) << path << " layer " << id;
    }
  }
}

TEST(ZooSamples, WrittenBackWithEqualContents) {
  const fs::path folder = test::FreshFolder("samples_copy");
  ASSERT_FALSE(Samples().empty());
  for (const fs::path& path : Samples()) {
    SCOPED_TRACE(path.string());
    const ZooFile original = ReadZooFile(path);
    for (const ZooAliases aliases : {ZooAliases::kExpand, ZooAliases::kShare}) {
      WriteZooFile(folder / path.filename(), original, aliases);
      ExpectEqual(original, ReadZooFile(folder / path.filename()));
    }
    // Shared as in the source: the same number of bytes when the root has the same name.
    const bool same_root = path.filename().string().find("_r_h_pbr") != std::string::npos;
    if (same_root) {
      EXPECT_EQ(fs::file_size(folder / path.filename()), fs::file_size(path));
    }
  }
}

TEST(ZooSamples, PyTorchReadsTheSameFromTheCopy) {
  if (!test::HasTorchPython()) GTEST_SKIP() << "no python3 with .deps/torch";
  const std::string script =
      "import sys, torch\n"
      "def flat(f):\n"
      "  out = []\n"
      "  for k, v in f.items():\n"
      "    if k != 'layers': out.append((k, v)); continue\n"
      "    for i, l in v.items():\n"
      "      assert type(i) is int\n"
      "      out.append((i, list(l), l['layer_id']))\n"
      "      for t in (l['rotation'], l['eigenvalues']):\n"
      "        assert t.is_contiguous() and t.dtype == torch.float32\n"
      "        assert t.untyped_storage().nbytes() == 4 * t.numel() and t.storage_offset() == 0\n"
      "        out.append((tuple(t.shape), t.view(torch.int32).tolist()))\n"
      "  return out\n"
      "for a, b in zip(sys.argv[1::2], sys.argv[2::2]):\n"
      "  x, y = (torch.load(f, weights_only=True) for f in (a, b))\n"
      "  assert list(x) == list(y), (list(x), list(y))\n"
      "  assert flat(x) == flat(y), a\n"
      "  assert torch.load(b, weights_only=True, mmap=True).keys() == y.keys()\n"
      "print('equal')\n";
  const fs::path folder = test::FreshFolder("samples_torch");
  WriteTextFile(folder / "compare.py", script);
  std::string command = test::TorchPython() + (folder / "compare.py").string();
  int number = 0;
  for (const fs::path& path : Samples()) {
    const fs::path copy = folder / ("copy" + std::to_string(number++) + ".pt");
    WriteZooFile(copy, ReadZooFile(path));
    command += " '" + path.string() + "' '" + copy.string() + "'";
  }
  EXPECT_EQ(test::OutputOf(command), "equal\n");
}

TEST(ZooSamples, SwappedAndMixedPairsAreRefused) {
  const fs::path folder = test::FreshFolder("samples_swapped");
  const fs::path source = test::ZooSamples() / "Qwen3-4B-Thinking-2507";
  fs::copy_file(source / "k_rotation_qqt_r_h_pbr.pt", folder / "v_rotation_qqt_r_h_pbr.pt");
  fs::copy_file(source / "v_rotation_sst_r_h_pbr.pt", folder / "k_rotation_sst_r_h_pbr.pt");
  const Error error = test::ErrorOf([&] { ReadZooEntry(folder); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("swapped"));
}

TEST(ZooSamples, OfficialCalibrationOutputIsRead) {
  int files = 0;
  for (const auto& entry :
       fs::recursive_directory_iterator(test::OfficialVectors() / "calibration")) {
    if (entry.path().extension() != ".pt" || entry.path().parent_path().filename() != "official") {
      continue;
    }
    ++files;
    const ZooFile file = ReadZooFile(entry.path());
    EXPECT_EQ(file.format_version, Value(1)) << entry.path();
    for (const ZooFinding& finding : ValidateFile(file, entry.path().string())) {
      EXPECT_FALSE(finding.error) << finding.where << ": " << finding.what;
    }
  }
  EXPECT_GT(files, 0);
}

// One flipped bit anywhere in the content of a published file is noticed.
TEST(ZooSamples, DamageIsNoticed) {
  const fs::path path = test::FreshFolder("samples_damage") / "k_rotation.pt";
  const fs::path source = test::ZooSamples() / "Qwen3.5-4B" / "hadamard" / "k_rotation.pt";
  const std::string original = ReadTextFile(source);
  const size_t content = 1088;  // first byte of data/0, a stored member of 262144 bytes
  for (const size_t at : {content, content + 5, content + 100000, content + 262143}) {
    std::string damaged = original;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x10);
    WriteTextFile(path, damaged);
    EXPECT_THAT(test::ErrorOf([&] { ReadZooFile(path); }).what(), HasSubstr("CRC-32")) << at;
  }
  for (const size_t length : {size_t{0}, size_t{100}, content, original.size() - 1}) {
    WriteTextFile(path, original.substr(0, length));
    EXPECT_THROW(ReadZooFile(path), Error) << length;
  }
}

}  // namespace
}  // namespace oscar
