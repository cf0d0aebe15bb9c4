// Decode cases whose results are known to the bit, or nearly, for the kernels and their CPU twin.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "gpu/decode_case.h"

namespace oscar::test {

// Byte j of slot s and head h is (s + 7 j + 31 h) mod 256 in keys, alike in values: every byte
// value meets every position. 8 query heads, 2 KV heads.
inline DecodeCase EveryByteCase(int64_t dim) {
  DecodeShape shape;
  shape.cache = {2, dim, 1, DType::kF32};
  shape.q_heads = 8;
  DecodeCase c(shape, {{256, 0}}, 6);
  for (int64_t slot = 0; slot < c.quantised_pool; ++slot) {
    for (int64_t head = 0; head < 2; ++head) {
      for (int64_t j = 0; j < dim / 4; ++j) {
        c.Codes(false, slot, head)[j] = static_cast<uint8_t>(slot + 7 * j + 31 * head);
        c.Codes(true, slot, head)[j] = static_cast<uint8_t>(slot + 11 * j + 57 * head);
      }
    }
  }
  return c;
}

inline void SetScales(std::vector<float>& scales, float scale, float zero) {
  for (size_t i = 0; i < scales.size(); i += 2) {
    scales[i] = scale;
    scales[i + 1] = zero;
  }
}

// One KV head; request r has one token and queries that are 1 in channel r. Scale 1 and zero 0: o
// is the value's codes, lse the code of channel r of the key.
inline DecodeCase OneHotCase(int64_t dim, int64_t group_size) {
  DecodeShape shape;
  shape.cache = {1, dim, 1, DType::kF32};
  shape.q_heads = group_size;
  const std::vector<RequestLengths> lengths(static_cast<size_t>(dim), {1, 0});
  DecodeCase c(shape, lengths, 8, Pages::kShuffledSlots);
  std::fill(c.q.begin(), c.q.end(), BFloat16{0});
  for (int64_t row = 0; row < c.rows(); ++row) {
    c.q[static_cast<size_t>(row * dim + row / group_size)] = ToBFloat16(1.0F);
  }
  SetScales(c.k_scales, 1, 0);
  SetScales(c.v_scales, 1, 0);
  c.StoreScales();
  c.logit_scale = 1;
  return c;
}

inline void ExpectOneHotCodes(DecodeCase& c, const DecodeResult& result) {
  const int64_t dim = c.shape.cache.dim, group_size = c.shape.q_heads;
  for (int64_t r = 0; r < dim; ++r) {
    const int64_t slot = c.quantised_slots[static_cast<size_t>(r)];
    const auto code = [&](bool value, int64_t d) {
      return static_cast<float>((c.Codes(value, slot, 0)[d % (dim / 4)] >> (2 * (d / (dim / 4)))) &
                                3);
    };
    for (int64_t h = 0; h < group_size; ++h) {
      const int64_t row = r * group_size + h;
      ASSERT_NEAR(result.lse[static_cast<size_t>(row)], code(false, r), 1e-6)
          << "dim " << dim << " channel " << r;
      for (int64_t d = 0; d < dim; ++d) {
        ASSERT_EQ(result.o[static_cast<size_t>(row * dim + d)], code(true, d))
            << "dim " << dim << " channel " << d << " head " << h;
      }
    }
  }
}

// Between two splits of the same tokens into pieces, relative Frobenius distance of the outputs.
// Each token's weight p s (s: scale of the value) is rounded to half precision, with p relative to
// the largest score so far of its piece and warp. Another split makes that another score, which
// scales the weights by no power of two, so that each is rounded anew. Rounding moves a weight by
// 2^-11 of it at most; over mantissas m in [1, 2) with density 1 / (m ln 2) the root mean square is
// 2^-10 / (12^1/2 m), 0.42 2^-11 = 2.1e-4. The rounding of a token moves o by as much of its
// share p v. Values whose signs are random add up as their errors do, to the root of their squares:
// o is off by 2.1e-4 of itself, and two splits by 2^1/2 of that, 2.93e-4, where no weight is
// rounded alike. bf16 rows, which are not rounded so, and tokens of the piece that has the largest
// score in both splits only make it less. More than that is no matter of rounding.
inline constexpr double kSplitBound = 3e-4;

// Tokens whose weights half precision holds in every split: scores are whole numbers in base 2, the
// codes of one key channel, and scales have the eight bits of bf16. Splits then differ by float32
// roundings alone. Values are not negative: nothing cancels. 4 query heads per KV head.
inline DecodeCase ExactWeightsCase(int64_t dim, const std::vector<RequestLengths>& lengths) {
  DecodeShape shape;
  shape.cache = {2, dim, 1, DType::kBF16};
  shape.q_heads = 8;
  DecodeCase c(shape, lengths, 24);
  std::fill(c.q.begin(), c.q.end(), BFloat16{0});
  for (int64_t row = 0; row < c.rows(); ++row) {
    c.q[static_cast<size_t>(row * dim + row * 29 % dim)] = ToBFloat16(1.0F);
  }
  SetScales(c.k_scales, 1, 0);
  for (size_t i = 1; i < c.v_scales.size(); i += 2) c.v_scales[i] = i % 4 == 1 ? 0.0F : -1.0F;
  c.StoreScales();
  c.logit_scale = 0.6931472F;  // ln 2: times log2 e it is 1 in float32
  return c;
}

}  // namespace oscar::test
