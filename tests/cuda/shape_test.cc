// What the kernels refuse, word for word.
#include <gtest/gtest.h>

#include <string>

#include "oscar/core/error.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"

namespace oscar {
namespace {

// Message and hint, or nothing.
template <typename Check>
std::string Refusal(const Check& check) {
  try {
    check();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return std::string(error.what()) + "; " + error.hint();
  }
  return "";
}

std::string Writing(int64_t dim, int64_t groups) {
  return Refusal([&] { CheckCacheShape({8, dim, groups, DType::kF32}); });
}

std::string Decoding(int64_t dim, int64_t groups, int64_t group_size = 1) {
  DecodeShape shape;
  shape.cache = {8, dim, groups, DType::kF32};
  shape.q_heads = 8 * group_size;
  return Refusal([&] { CheckDecodeShape(shape); });
}

TEST(Shape, ARefusalNamesTheQueryHeads) {
  EXPECT_EQ(Decoding(128, 1, 16), "");
  EXPECT_EQ(Decoding(128, 1, 17),
            "a group of 17 query heads per KV head is not supported by the CUDA kernels; up to 16 "
            "are");
}

// A hint names groups that the refusing kernels take, all of them and no others.
TEST(Shape, AHintOnGroupsHoldsForTheHeadSize) {
  EXPECT_EQ(Writing(64, 8),
            "a row of 64 channels in 8 groups is not supported by the CUDA kernels; 1, 2 and 4 "
            "groups are");
  EXPECT_EQ(Writing(128, 16),
            "a row of 128 channels in 16 groups is not supported by the CUDA kernels; 1, 2, 4 and "
            "8 groups are");
  EXPECT_EQ(Writing(256, 3),
            "a row of 256 channels in 3 groups is not supported by the CUDA kernels; 1, 2, 4, 8 "
            "and 16 groups are");
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t groups : {-1, 0, 1, 2, 3, 4, 5, 8, 16, 32}) {
      const bool power = groups == 1 || groups == 2 || groups == 4 || groups == 8 || groups == 16;
      EXPECT_EQ(Writing(dim, groups).empty(), power && groups <= dim / 16) << dim << " " << groups;
      EXPECT_EQ(Decoding(dim, groups),
                power && groups <= 4
                    ? ""
                    : "decoding rows in " + std::to_string(groups) +
                          " groups is not supported by the CUDA kernels; 1, 2 and 4 groups are");
    }
  }
}

TEST(Shape, TheHeadSizeComesFirst) {
  const std::string expected =
      "head size 96 is not supported by the CUDA kernels; head sizes 64, 128 and 256 are";
  EXPECT_EQ(Writing(96, 3), expected);
  EXPECT_EQ(Decoding(96, 3), expected);
}

}  // namespace
}  // namespace oscar
