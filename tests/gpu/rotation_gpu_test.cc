// Rotations of the write kernel: hard rows, the identity, and one per KV head that a group of query
// heads shares.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/device_write.h"

namespace oscar::test {
namespace {

// Enough rows of `heads` heads for every kind of HardRows, and for more than a tile of a rotation.
int64_t Tokens(int64_t heads) { return std::max<int64_t>(40, (66 + heads - 1) / heads); }

// Rows as float64 rotates them; from equal rotated rows, the twin's bytes.
void ExpectRotatedByDevice(const WriteCase& c) {
  const Written rows = OnDevice(AllToRows(c)), queries = OnDevice(AsQueries(c));
  ExpectRotated(c.rows, c.rotation, c.shape.heads, c.HeadsPerMatrix(), c.shape.dim,
                RowsOf(c, rows));
  EXPECT_TRUE(SameRows(RowsOf(c, rows), RowsOf(c, queries)));
  const Written found = OnDevice(c), expected = OnHost(OnRotated(c, RowsOf(c, rows)));
  EXPECT_EQ(found.codes, expected.codes);
  EXPECT_EQ(found.scales, expected.scales);
  EXPECT_TRUE(SameRows(found.rows, expected.rows));
}

TEST(WriteGpu, QueriesTakeTheRotationOfTheirKvHead) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t kv_heads : {1, 3, 8}) {
      for (const int64_t group_size : {2, 3, 4, 7, 8, 16}) {
        const int64_t heads = kv_heads * group_size;
        WriteCase c({heads, dim, 1, DType::kF32}, heads > 24 ? 5 : Tokens(heads),
                    static_cast<uint64_t>(group_size));
        SCOPED_TRACE(std::to_string(dim) + ": " + std::to_string(heads) + " query heads of " +
                     std::to_string(kv_heads));
        c.per_head = true;
        c.heads_per_rotation = group_size;
        c.KeepEveryThird();
        Random random(static_cast<uint64_t>(dim + group_size));
        c.rotation = NormalMatrices(random, kv_heads, dim);
        ExpectRotatedByDevice(c);
      }
    }
  }
}

// Several tiles of each rotation in every block.
TEST(WriteGpu, ManyQueriesTakeTheRotationOfTheirKvHead) {
  OSCAR_NEED_DEVICE();
  WriteCase c({12, 128, 1, DType::kF32}, 9001, 6);
  c.per_head = true;
  c.heads_per_rotation = 3;
  Random random(7);
  c.rotation = SignedHadamards(random, 4, 128);
  const Written found = OnDevice(AsQueries(c));
  ExpectRotated(c.rows, c.rotation, 12, 3, 128, RowsOf(c, found));
}

TEST(WriteGpu, HardRowsAreRotated) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      for (const int64_t groups : {1, 2, 4}) {
        const DType type = groups == 1 ? DType::kF32 : groups == 2 ? DType::kF16 : DType::kBF16;
        WriteCase c({4, dim, groups, type}, Tokens(4), 5);
        SCOPED_TRACE(std::to_string(dim) + "/" + std::to_string(groups) +
                     (per_head ? " per head" : " per layer"));
        c.per_head = per_head;
        c.clip = 0.96;
        c.KeepEveryThird();
        Random random(6);
        for (const std::vector<BFloat16>& rotation :
             RotationsOfEveryKind(random, c.matrices(), dim, per_head)) {
          c.rotation = rotation;
          for (const ClipRule rule : {ClipRule::kOrderStatistic, ClipRule::kBisection}) {
            c.rule = rule;
            ExpectRotatedByDevice(c);
          }
        }
      }
    }
  }
}

TEST(WriteGpu, TheIdentityGivesTheBytesOfNoRotation) {
  OSCAR_NEED_DEVICE();
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      WriteCase c({3, dim, 4, DType::kF32}, 331, 7);
      SCOPED_TRACE(std::to_string(dim) + (per_head ? " per head" : " per layer"));
      c.per_head = per_head;
      c.clip = 0.92;
      c.KeepEveryThird();
      const Written plain = OnDevice(OnRotated(c, WithoutNegativeZeros(c.rows)));
      c.rotation = IdentityMatrices(c.matrices(), dim);
      const Written found = OnDevice(c);
      EXPECT_EQ(found.codes, plain.codes);
      EXPECT_EQ(found.scales, plain.scales);
      EXPECT_TRUE(SameRows(found.rows, plain.rows));
    }
  }
}

}  // namespace
}  // namespace oscar::test
