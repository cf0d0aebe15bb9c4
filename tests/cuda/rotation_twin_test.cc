// Rotations in the CPU twins against float64: one for a layer, one per KV head, and one per KV head
// that a group of query heads shares.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "gpu/decode_by_twin.h"
#include "gpu/rotations.h"
#include "gpu/write_case.h"

namespace oscar::test {
namespace {

// Enough rows of `heads` heads for every kind of HardRows.
int64_t Tokens(int64_t heads) { return std::max<int64_t>(2, (66 + heads - 1) / heads); }

void ExpectRotatedByTwin(const WriteCase& c) {
  for (const WriteCase& rows : {AllToRows(c), AsQueries(c)}) {
    ExpectRotated(c.rows, c.rotation, c.shape.heads, c.HeadsPerMatrix(), c.shape.dim,
                  RowsOf(c, OnHost(rows)));
  }
}

TEST(WriteTwin, QueriesTakeTheRotationOfTheirKvHead) {
  constexpr int64_t kv_heads = 3;
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t group_size : {1, 2, 3, 4, 7, 8, 16}) {
      const int64_t heads = kv_heads * group_size;
      WriteCase c({heads, dim, 1, DType::kF32}, Tokens(heads), static_cast<uint64_t>(group_size));
      Random random(static_cast<uint64_t>(dim + group_size));
      c.per_head = true;
      c.heads_per_rotation = group_size;
      SCOPED_TRACE(std::to_string(group_size) + " query heads per KV head");
      c.rotation = NormalMatrices(random, kv_heads, dim);
      ExpectRotatedByTwin(c);
      c.rotation = SignedHadamards(random, kv_heads, dim);
      ExpectRotatedByTwin(c);
    }
  }
}

TEST(WriteTwin, RotatesPerLayerAndPerKvHead) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      WriteCase c({4, dim, 2, DType::kF32}, Tokens(4), 5);
      SCOPED_TRACE(per_head ? "per head" : "per layer");
      c.per_head = per_head;
      c.clip = 0.92;
      Random random(6);
      for (const std::vector<BFloat16>& rotation :
           RotationsOfEveryKind(random, c.matrices(), dim, per_head)) {
        c.rotation = rotation;
        ExpectRotatedByTwin(c);
        // Quantised, they give the bytes of the rotated rows.
        const WriteCase own = OnRotated(c, RowsOf(c, OnHost(AllToRows(c))));
        const Written found = OnHost(c), expected = OnHost(own);
        EXPECT_EQ(found.codes, expected.codes) << dim;
        EXPECT_EQ(found.scales, expected.scales) << dim;
      }
    }
  }
}

TEST(WriteTwin, TheIdentityGivesTheBytesOfNoRotation) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool per_head : {false, true}) {
      WriteCase c({3, dim, 4, DType::kF32}, 100, 7);
      c.per_head = per_head;
      c.clip = 0.92;
      c.KeepEveryThird();
      const Written plain = OnHost(OnRotated(c, WithoutNegativeZeros(c.rows)));
      c.rotation = IdentityMatrices(c.matrices(), dim);
      const Written found = OnHost(c);
      EXPECT_EQ(found.codes, plain.codes) << dim;
      EXPECT_EQ(found.scales, plain.scales) << dim;
      EXPECT_TRUE(SameRows(found.rows, plain.rows)) << dim;
    }
  }
}

std::vector<BFloat16> TwinBFloat16(DecodeCase& c) {
  std::vector<BFloat16> o(static_cast<size_t>(c.outputs()));
  DecodeTwin(c.shape, PlanDecode(c.shape, c.lengths, 5), c.HostInputs(),
             {o.data(), DType::kBF16, nullptr});
  return o;
}

// o R^T of every row, in float64.
DecodeResult RotatedBack(const DecodeCase& c, DecodeResult result) {
  const int64_t dim = c.shape.cache.dim;
  for (int64_t row = 0; row < c.rows(); ++row) {
    const int64_t head = row % c.shape.q_heads / c.shape.GroupSize();
    const BFloat16* const r = c.v_rotation.data() + (c.rotation_per_head ? head * dim * dim : 0);
    float* const o = result.o.data() + row * dim;
    const std::vector<float> x(o, o + dim);
    for (int64_t j = 0; j < dim; ++j) {
      double sum = 0;
      for (int64_t d = 0; d < dim; ++d) {
        sum += static_cast<double>(x[static_cast<size_t>(d)]) *
               static_cast<double>(ToFloat(r[j * dim + d]));
      }
      o[j] = static_cast<float>(sum);
    }
  }
  return result;
}

TEST(DecodeTwin, RotatesValuesBackPerLayerAndPerKvHead) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const int64_t group_size : {1, 4, 7, 16}) {
      for (const bool per_head : {false, true}) {
        DecodeShape shape;
        shape.cache = {3, dim, 1, DType::kF32};
        shape.q_heads = 3 * group_size;
        DecodeCase c(shape, {{90, 9}, {0, 0}, {0, 5}}, 15);
        const DecodeResult plain = Reference(c);
        Random random(16);
        c.rotation_per_head = per_head;
        c.v_rotation = SignedHadamards(random, per_head ? 3 : 1, dim);
        const DecodeResult expected = RotatedBack(c, plain);
        SCOPED_TRACE(std::to_string(dim) + "/" + std::to_string(group_size) +
                     (per_head ? " per head" : " per layer"));
        // The rotation keeps lengths but for the rounding of its entries: the promise stands.
        const Distance distance = Compare(Twin(c, 5), expected);
        EXPECT_LE(distance.output, 1e-3);
        EXPECT_LE(distance.lse, 1e-5);
        // Two float32 roundings of the output, 2^-24 each, before and after.
        EXPECT_LE(Compare(Reference(c), expected).output, 0x1p-23);
      }
    }
  }
}

TEST(DecodeTwin, BFloat16OutputIsTheRoundedOutput) {
  for (const int64_t dim : {64, 128, 256}) {
    for (const bool rotated : {false, true}) {
      DecodeShape shape;
      shape.cache = {2, dim, 1, DType::kF32};
      shape.q_heads = 8;
      DecodeCase c(shape, {{300, 20}, {0, 0}, {0, 5}}, 18);
      Random random(19);
      c.rotation_per_head = true;
      if (rotated) c.v_rotation = SignedHadamards(random, 2, dim);
      const std::vector<BFloat16> stored = TwinBFloat16(c);
      const DecodeResult exact = Twin(c, 5), reference = Reference(c);
      DecodeResult widened{{}, reference.lse};
      for (size_t i = 0; i < stored.size(); ++i) {
        ASSERT_EQ(stored[i].bits, ToBFloat16(exact.o[i]).bits) << dim << " " << i;
        widened.o.push_back(ToFloat(stored[i]));
      }
      // Rounding to bf16 adds 2^-8 of each element at most.
      EXPECT_LE(Compare(widened, reference).output, 1e-3 + 0x1p-8) << dim;
    }
  }
}

}  // namespace
}  // namespace oscar::test
