// Rotation files written by PyTorch over strided, shared and overlapping storages, and what PyTorch
// reads from the files we write.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "oscar/zoo/entry.h"
#include "support/golden.h"
#include "support/torch_python.h"
#include "zoo/make_zoo.h"

namespace oscar {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

fs::path Rotations() {
  return fs::path(OSCAR_SOURCE_DIR) / "tests" / "golden" / "torchfile" / "rotations";
}

TEST(ZooStorages, StridesOffsetsAndTypesAreReal) {
  const std::vector<float> matrix = {0.5F, 0.5F, 0.5F,  0.5F,  0.5F,  -0.5F, 0.5F, -0.5F,
                                     0.5F, 0.5F, -0.5F, -0.5F, -0.5F, 0.5F,  0.5F, -0.5F};
  int files = 0;
  for (const auto& entry : fs::directory_iterator(Rotations())) {
    if (!entry.path().filename().string().starts_with("same_")) continue;
    ++files;
    const ZooFile file = ReadZooFile(entry.path());
    ASSERT_EQ(file.layers.size(), 1U) << entry.path();
    EXPECT_EQ(file.layers.at(3).rotation, matrix) << entry.path();
    EXPECT_EQ(file.layers.at(3).eigenvalues, (std::vector<float>{1, 2, 4, 8})) << entry.path();
  }
  EXPECT_GT(files, 0);
  EXPECT_EQ(ReadZooFile(Rotations() / "same_bfloat16.pt").layers.at(3).stored_as, DType::kBF16);
  EXPECT_EQ(ReadZooFile(Rotations() / "same_deep.pt")
                .extra.At("calibration")
                .At("nested")
                .At("a")
                .At("b")
                .AsArray()[1],
            Value(2.5));
}

TEST(ZooStorages, WrongOverlapIsRefused) {
  const auto refusal = [](const char* name) {
    const Error error = test::ErrorOf([&] { ReadZooFile(Rotations() / name); });
    EXPECT_EQ(error.code(), ErrorCode::kFormat);
    return std::string(error.what());
  };
  EXPECT_THAT(refusal("overlap_rows.pt"),
              HasSubstr("rotation of layer 3 and rotation of layer 4 overlap"));
  EXPECT_THAT(refusal("overlap_transposed.pt"), HasSubstr("overlap in storage"));
  EXPECT_THAT(refusal("overlap_eigenvalues.pt"),
              HasSubstr("rotation of layer 3 and eigenvalues of layer 3 overlap"));
  EXPECT_THAT(refusal("repeated_row.pt"), HasSubstr("repeats elements"));
}

TEST(ZooStorages, WholeSharingAndDisjointViewsAreFine) {
  const ZooFile whole = ReadZooFile(Rotations() / "shared_whole.pt");
  EXPECT_EQ(whole.layers.at(3).rotation, whole.layers.at(4).rotation);
  const ZooFile apart = ReadZooFile(Rotations() / "shared_apart.pt");
  EXPECT_EQ(apart.layers.at(3).rotation[15], 15);
  EXPECT_EQ(apart.layers.at(4).rotation[0], 16);
  EXPECT_EQ(apart.layers.at(3).eigenvalues[0], 32);
}

// [key, value] pairs of a described dict.
std::vector<std::string> Keys(const Value& dict) {
  std::vector<std::string> keys;
  for (const Value& pair : dict.At("dict").AsArray()) keys.push_back(pair.AsArray()[0].ToJson());
  return keys;
}
const Value& Item(const Value& dict, size_t index) {
  return dict.At("dict").AsArray()[index].AsArray()[1];
}

// Keys, types, dtypes and contiguity of the published format, as torch.load(weights_only=True)
// sees our files.
TEST(ZooStorages, PyTorchSeesThePublishedFormat) {
  if (!test::HasTorchPython()) GTEST_SKIP() << "no python3 with .deps/torch";
  const fs::path folder = test::FreshFolder("zoo_published_format");
  const ZooFile shared = test::RandomFile("qqt_r_h_pbr", {0, 35}, 8, 1);
  const ZooFile per_head = test::RandomFile("qqt_r_h_pbr", {0, 35}, 8, 1, 3);
  for (const ZooFile* file : {&shared, &per_head}) {
    const bool heads = file == &per_head;
    WriteZooFile(folder / "k.pt", *file);
    const Value top = test::DescribeWithTorch(folder / "k.pt");
    EXPECT_THAT(Keys(top), testing::ElementsAre("\"format_version\"", "\"objective\"",
                                                "\"source_grouping\"", "\"layers\""));
    EXPECT_EQ(Item(top, 0), Value(heads ? 2 : 1));
    EXPECT_EQ(Item(top, 1), Value("qqt_r_h_pbr"));
    EXPECT_EQ(Item(top, 2), Value(heads ? "per_kv_head" : "layer"));
    EXPECT_THAT(Keys(Item(top, 3)), testing::ElementsAre("0", "35"));  // integers, not text
    const Value& layer = Item(Item(top, 3), 1);
    std::vector<std::string> keys = {"\"layer_id\"", "\"rotation\""};
    if (!heads) keys.push_back("\"eigenvalues\"");
    EXPECT_EQ(Keys(layer), keys);
    EXPECT_EQ(Item(layer, 0), Value(35));
    const Value& rotation = Item(layer, 1).At("tensor");
    EXPECT_EQ(rotation.At("dtype"), Value("f32"));
    EXPECT_EQ(rotation.At("contiguous"), Value(true));
    EXPECT_EQ(rotation.At("shape").ToJson(), heads ? "[3,8,8]" : "[8,8]");
    const Value::Array& values = rotation.At("values").AsArray();
    const std::vector<float>& expected = file->layers.at(35).rotation;
    ASSERT_EQ(values.size(), expected.size());
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i].AsDouble(), static_cast<double>(expected[i]));
    }
  }
}

// Killed at any moment, a writer leaves a whole entry or none under the final name.
TEST(ZooStorages, AKilledWriterLeavesNoHalfPair) {
  const fs::path root = test::FreshFolder("zoo_killed");
  const fs::path folder = root / "entry";
  const ZooFile key = test::RandomFile("qqt_r_h_pbr", {0, 1, 2, 3}, 64, 1);
  const ZooFile value = test::RandomFile("sst_r_h_pbr", {0, 1, 2, 3}, 64, 9);
  int whole = 0;
  for (int i = 0; i < 40; ++i) {
    fs::remove_all(root);
    fs::create_directories(root);
    const pid_t child = fork();
    if (child == 0) {
      WriteZooEntry(folder, key, value, "k_rotation.pt", "v_rotation.pt", Value::Object(), false);
      _exit(0);
    }
    usleep(static_cast<useconds_t>(i * 500));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    if (!fs::exists(folder)) continue;
    ++whole;
    EXPECT_EQ(ReadZooEntry(folder).value.layers.size(), 4U);
  }
  // The next run is not disturbed by what is left.
  WriteZooEntry(folder, key, value, "k_rotation.pt", "v_rotation.pt", Value::Object(), true);
  EXPECT_TRUE(ValidateEntry(ReadZooEntry(folder)).empty()) << whole;
}

}  // namespace
}  // namespace oscar
