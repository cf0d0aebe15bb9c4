// Decode attention on the device: every number of query heads per KV head, and hard rows at shapes
// of every kind.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "gpu/decode_hard_cases.h"
#include "gpu/decode_shape_cases.h"
#include "gpu/expect_close.h"

namespace oscar::test {
namespace {

void ExpectHardCasesClose(const DecodeShape& shape, int64_t tokens) {
  for (NamedDecodeCase& hard : HardDecodeCases(shape, tokens)) {
    ExpectClose(hard.c, Name(shape) + "_" + hard.name);
  }
}

TEST(DecodeGpu, HardRows) {
  OSCAR_NEED_DEVICE();
  ExpectHardCasesClose(Shape(32, 8), 2000);
  // In half precision the zeros of constant rows are infinite.
  ExpectHardCasesClose(Shape(16, 4, 128, 1, DType::kF16), 500);
  ExpectHardCasesClose(Shape(32, 2), 700);
  ExpectHardCasesClose(Shape(4, 2, 64), 500);
  ExpectHardCasesClose(Shape(16, 2, 256), 300);
}

TEST(DecodeGpu, HardRowsInGroups) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : HardShapesInGroups()) ExpectHardCasesClose(shape, 500);
}

TEST(DecodeGpu, HardRowsOfManyQueries) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : HardShapesOfManyQueries()) ExpectHardCasesClose(shape, 500);
}

TEST(DecodeGpu, HardRowsInBFloat16) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : HardShapesWithScalesOf(DType::kBF16)) {
    ExpectHardCasesClose(shape, 500);
  }
}

// In half precision the zeros of constant rows are infinite.
TEST(DecodeGpu, HardRowsInFloat16) {
  OSCAR_NEED_DEVICE();
  for (const DecodeShape& shape : HardShapesWithScalesOf(DType::kF16)) {
    ExpectHardCasesClose(shape, 500);
  }
}

TEST(DecodeGpu, EveryGroupSize) {
  OSCAR_NEED_DEVICE();
  for (const int64_t kv_heads : {8, 1}) {
    for (const DecodeShape& shape : EveryGroupSize(kv_heads)) {
      DecodeCase c(shape, {{700, 37}, {0, 0}, {65, 0}, {0, 19}}, 26);
      ExpectClose(c, Name(shape));
    }
  }
}

TEST(DecodeGpu, EveryGroupSizeInGroups) {
  OSCAR_NEED_DEVICE();
  for (const int64_t groups : {2, 4}) {
    for (const DecodeShape& shape : EveryGroupSize(4, groups)) {
      DecodeCase c(shape, {{330, 7}, {0, 19}}, 27);
      ExpectClose(c, Name(shape));
    }
  }
}

}  // namespace
}  // namespace oscar::test
