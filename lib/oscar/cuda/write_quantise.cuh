// Codes of rows in registers, by their thresholds (write_thresholds.cuh) or by the formula, and the
// stores of codes, scales and zeros (see write_kernel.cuh). Device code.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_select.cuh"
#include "oscar/cuda/write_thresholds.cuh"

namespace oscar {

enum class RowUse { kNone, kKeep, kQuantise };

// Where a row goes: row `at` = slot * heads + head of the bf16 rows or of the codes.
struct RowTarget {
  int64_t at = 0;
  RowUse use = RowUse::kNone;
};

__device__ __forceinline__ float HalfOf(uint32_t word, int row) {
  return row == 0 ? LowBFloat16(word) : HighBFloat16(word);
}

// The code of x in any group, by the formula.
__device__ __forceinline__ uint32_t WildCode(float x, float scale, float zero) {
  const float t = __fadd_rn(__fadd_rn(__fdiv_rn(x, scale), zero), 0.5F);
  return static_cast<uint32_t>(fminf(fmaxf(t, 0.0F), 3.0F));
}

__device__ __forceinline__ void StoreScale(char* at, ScaleKind kind, float scale, float zero) {
  if (kind == ScaleKind::kF32) {
    *reinterpret_cast<float2*>(at) = make_float2(scale, zero);
  } else if (kind == ScaleKind::kF16) {
    *reinterpret_cast<uint32_t*>(at) = PackHalf(scale, zero);
  } else {
    *reinterpret_cast<uint32_t*>(at) = PackBFloat16(scale, zero);
  }
}

// Stores the codes of a row pair from the four lanes' words: v[n] holds bytes 8 n + 2 t, + 1 of the
// first row in its lower half, of the second in its upper half. Two exchanges leave half of the
// first row's bytes in each of the lanes 0 and 1, of the second's in 2 and 3. `row` is the lane's.
template <int kDim>
__device__ __forceinline__ void StoreCodes(uint8_t* row, const uint32_t (&v)[kDim / 32],
                                           bool wanted) {
  const int t = static_cast<int>(threadIdx.x) & 3;
  const bool second = (t & 2) != 0, odd = (t & 1) != 0;
  if constexpr (kDim == 64) {
    const uint32_t low = __byte_perm(v[0], v[1], 0x5410), high = __byte_perm(v[0], v[1], 0x7632);
    const uint32_t own = second ? high : low;  // tiles 0, 1 of lane t, then of lane t ^ 2
    const uint32_t other = __shfl_xor_sync(~0U, second ? low : high, 2);
    const uint32_t near = second ? other : own, far = second ? own : other;  // lanes 0|1, 2|3
    const uint32_t first_tile = __byte_perm(near, far, 0x5410);
    const uint32_t second_tile = __byte_perm(near, far, 0x7632);
    const uint32_t received = __shfl_xor_sync(~0U, odd ? first_tile : second_tile, 1);
    const uint32_t even_lane = odd ? received : first_tile;
    const uint32_t odd_lane = odd ? second_tile : received;
    const uint2 bytes = make_uint2(__byte_perm(even_lane, odd_lane, 0x5410),
                                   __byte_perm(even_lane, odd_lane, 0x7632));
    if (wanted) *reinterpret_cast<uint2*>(row + 8 * (t & 1)) = bytes;
  } else {
#pragma unroll
    for (int part = 0; part < kDim / 128; ++part) {
      // Tiles 0, 1 and 2, 3 of the two rows.
      uint32_t mine[2], other[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t a = v[4 * part + 2 * i], b = v[4 * part + 2 * i + 1];
        const uint32_t low = __byte_perm(a, b, 0x5410), high = __byte_perm(a, b, 0x7632);
        mine[i] = second ? high : low;
        other[i] = __shfl_xor_sync(~0U, second ? low : high, 2);
      }
      // Even lanes keep tiles 0, 1, odd lanes 2, 3, of the lane and of the one two further.
      const uint32_t own = odd ? mine[1] : mine[0], own_far = odd ? other[1] : other[0];
      const uint32_t got = __shfl_xor_sync(~0U, odd ? mine[0] : mine[1], 1);
      const uint32_t got_far = __shfl_xor_sync(~0U, odd ? other[0] : other[1], 1);
      // Lanes 0, 1 have those of lanes 0, 1 first, lanes 2, 3 those of 2, 3.
      const uint32_t even = odd ? got : own, even_far = odd ? got_far : own_far;
      const uint32_t odds = odd ? own : got, odds_far = odd ? own_far : got_far;
      const uint32_t near_low = __byte_perm(even, odds, 0x5410);
      const uint32_t near_high = __byte_perm(even, odds, 0x7632);
      const uint32_t far_low = __byte_perm(even_far, odds_far, 0x5410);
      const uint32_t far_high = __byte_perm(even_far, odds_far, 0x7632);
      const uint4 bytes = second ? make_uint4(far_low, near_low, far_high, near_high)
                                 : make_uint4(near_low, far_low, near_high, far_high);
      if (wanted) *reinterpret_cast<uint4*>(row + 32 * part + 16 * (t & 1)) = bytes;
    }
  }
}

// All ones in the halves where x >= bound.
__device__ __forceinline__ uint32_t AtLeast(uint32_t x, uint32_t bound) {
  return __hge2_mask(AsPair(x), AsPair(bound));
}

// Codes of both rows by thresholds: v[n] holds bytes 8 n + 2 t, + 1 of the two rows in its halves.
// The upper bit of a code says whether x reaches the second threshold; the lower one whether it
// reaches the third if so, the first if not.
//
// A comparison gives the integer 65535 b - 65536 a, a and b being the answers (0 or 1) for the
// lower and the upper row; with a weight of -2^k, -65536 (b - a) 2^k + a 2^k. The sum over all
// answers is A + 65536 (B - A), where A and B are the rows' bits; times 65537 it is A + 65536 B.
// Multiply-adds leave the logic units to the selection.
template <int kDim, int kGroups>
__device__ __forceinline__ void CodesByThresholds(const uint32_t (&x)[kDim / 4],
                                                  const uint32_t (&bounds)[kGroups][3],
                                                  uint32_t (&v)[kDim / 32]) {
  constexpr int kQuarterTiles = kDim / 32;
  constexpr int kGroupWords = kDim / 4 / kGroups;
#pragma unroll
  for (int n = 0; n < kQuarterTiles; ++n) {
    uint32_t sum = 0;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int word = 2 * (n + quarter * kQuarterTiles) + c;
        const uint32_t(&bound)[3] = bounds[word / kGroupWords];
        const uint32_t upper = AtLeast(x[word], bound[1]);
        const uint32_t lower = AtLeast(x[word], (upper & bound[2]) | (~upper & bound[0]));
        const uint32_t weight = 1U << (2 * quarter + 8 * c);
        sum += upper * (0U - 2 * weight);
        sum += lower * (0U - weight);
      }
    }
    v[n] = sum * 0x10001U;
  }
}

// The same by the formula for every element.
template <int kDim, int kGroups>
__device__ __noinline__ void CodesByFormula(const uint32_t (&x)[kDim / 4], RowPair limit,
                                            const float (&scale)[2][kGroups],
                                            const float (&zero)[2][kGroups],
                                            uint32_t (&v)[kDim / 32]) {
  constexpr int kQuarterTiles = kDim / 32;
  constexpr int kGroupWords = kDim / 4 / kGroups;
#pragma unroll 1
  for (int n = 0; n < kQuarterTiles; ++n) {
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < 16; ++i) {
      const int r = i >> 3, c = (i >> 2) & 1, quarter = i & 3;
      const int word = 2 * (n + quarter * kQuarterTiles) + c;
      const float bound = r == 0 ? limit.low : limit.high;
      const float value = fmaxf(fminf(HalfOf(x[word], r), bound), -bound);
      const int group = word / kGroupWords;
      bits |= WildCode(value, scale[r][group], zero[r][group]) << (2 * quarter + 8 * c + 16 * r);
    }
    v[n] = bits;
  }
}

// Parameters, codes and stores of both rows of a lane; |x| is limited to `limit`. The four lanes of
// a row pair share the work on its parameters: lane t takes row t / 2, which goes to `target`.
template <int kDim, int kGroups>
__device__ __forceinline__ void QuantiseRows(const WriteJobParams& job, ScaleKind kind,
                                             const RowTarget& target, const uint32_t (&x)[kDim / 4],
                                             const PairRanges<kGroups>& ranges, RowPair limit) {
  const int t = static_cast<int>(threadIdx.x) & 3;
  const int own = t >> 1;
  const bool wanted = target.use == RowUse::kQuantise;
  const float bound = own == 0 ? limit.low : limit.high;
  const auto limited = [bound](float value) { return fmaxf(fminf(value, bound), -bound); };
  GroupParameters p[kGroups];
  uint32_t bounds[kGroups][3];
  bool tame = true;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    p[group] = MakeParameters(limited(HalfOf(ranges.low[group], own)),
                              limited(HalfOf(ranges.high[group], own)), tame);
    PairThresholds(p[group], tame, bounds[group]);
  }
  uint32_t v[kDim / 32];
  if (__all_sync(~0U, tame || !wanted)) {
    CodesByThresholds<kDim, kGroups>(x, bounds, v);
  } else {
    // Copies, so that the words themselves need no address.
    uint32_t words[kDim / 4];
    float scale[2][kGroups], zero[2][kGroups];
    uint32_t codes[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) words[i] = x[i];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      RedoParameters(p[group]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int from = (static_cast<int>(threadIdx.x) & 28) + 2 * r;
        scale[r][group] = __shfl_sync(~0U, p[group].scale, from);
        zero[r][group] = __shfl_sync(~0U, p[group].zero, from);
      }
    }
    CodesByFormula<kDim, kGroups>(words, limit, scale, zero, codes);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) v[i] = codes[i];
  }
  StoreCodes<kDim>(job.codes + target.at * (kDim / 4), v, wanted);
  if (!wanted) return;
  const int bytes = 2 * (kind == ScaleKind::kF32 ? 4 : 2);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    if ((t & 1) == group % 2) {
      StoreScale(job.scales + (target.at * kGroups + group) * bytes, kind, p[group].scale,
                 p[group].zero);
    }
  }
}

}  // namespace oscar
