// Every block type against the Python package gguf (tests/golden/weights/make.py).
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "oscar/weights/gguf.h"
#include "oscar/weights/tensor_type.h"
#include "support/golden.h"

namespace oscar {
namespace {

std::vector<float> ReadAll(const TensorSet& tensors, const std::string& name) {
  const StoredTensor* tensor = tensors.Find(name);
  if (tensor == nullptr) return {};
  std::vector<float> out(static_cast<size_t>(ElementCount(tensor->shape)));
  tensors.ReadRows(name, *tensor, 0, tensor->shape[0], out.data());
  return out;
}

TEST(Quants, EqualTheReferenceBitForBit) {
  const GgufFile file =
      OpenGguf(std::filesystem::path(OSCAR_SOURCE_DIR) / "tests/golden/weights/quants.gguf");
  int cases = 0;
  for (const TensorType type : kAllTensorTypes) {
    if (type == TensorType::kF32) continue;  // what the expected values are stored in
    const std::string name(TensorTypeName(type));
    const std::vector<float> found = ReadAll(file.tensors, name);
    const std::vector<float> expected = ReadAll(file.tensors, name + ".expected");
    ASSERT_FALSE(expected.empty()) << name;
    ASSERT_EQ(found.size(), expected.size()) << name;
    for (size_t i = 0; i < found.size(); ++i) {
      // Bits, not values: the sign of zero counts.
      ASSERT_EQ(std::memcmp(&found[i], &expected[i], sizeof(float)), 0)
          << name << "[" << i << "]: " << found[i] << " instead of " << expected[i];
    }
    ++cases;
  }
  EXPECT_EQ(cases, 10);
}

TEST(Quants, RowsCanBeReadApart) {
  const GgufFile file =
      OpenGguf(std::filesystem::path(OSCAR_SOURCE_DIR) / "tests/golden/weights/quants.gguf");
  for (const char* name : {"Q4_1", "Q6_K", "BF16"}) {
    const StoredTensor& tensor = *file.tensors.Find(name);
    const std::vector<float> all = ReadAll(file.tensors, name);
    const int64_t cols = tensor.shape[1];
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      std::vector<float> one(static_cast<size_t>(cols));
      file.tensors.ReadRows(name, tensor, row, row + 1, one.data());
      EXPECT_TRUE(std::equal(one.begin(), one.end(), all.begin() + row * cols)) << name << row;
    }
  }
}

}  // namespace
}  // namespace oscar
