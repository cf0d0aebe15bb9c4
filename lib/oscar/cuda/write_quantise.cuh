// Parameters, thresholds and codes of rows in registers (see write_kernel.cuh). Device code.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_select.cuh"

namespace oscar {

// Where a row of a tile goes.
struct TileRow {
  int64_t slot = 0;
  int32_t head = 0;
  bool exists = false;
};

__device__ __forceinline__ float HalfOf(uint32_t word, int row) {
  return row == 0 ? LowBFloat16(word) : HighBFloat16(word);
}

__device__ __forceinline__ uint32_t PairMaxBFloat16(uint32_t a, uint32_t b) {
  const __nv_bfloat162 c = __hmax2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                   *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}
__device__ __forceinline__ uint32_t PairMinBFloat16(uint32_t a, uint32_t b) {
  const __nv_bfloat162 c = __hmin2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                   *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&c);
}

// Affine parameters of one group of one row.
struct GroupParameters {
  float scale, zero, reciprocal;
};

__device__ __forceinline__ GroupParameters MakeParameters(float low, float high, bool& tame) {
  GroupParameters p;
  p.scale = __fdiv_rn(fmaxf(__fsub_rn(high, low), 1e-8F), 3.0F);
  p.zero = __fdiv_rn(__fsub_rn(0.0F, low), p.scale);
  p.reciprocal = __fdiv_rn(1.0F, p.scale);
  tame = tame && p.scale > 0x1p-90F && p.scale < 0x1p90F && fabsf(p.zero) < 1024.0F;
  return p;
}

// trunc(x / s + z + 1/2) as an integer in the low bits of a float's pattern.
__device__ __forceinline__ uint32_t TameCode(float x, const GroupParameters& p) {
  const float q = __fmul_rn(x, p.reciprocal);
  const float quotient = __fmaf_rn(__fmaf_rn(-q, p.scale, x), p.reciprocal, q);
  return __float_as_uint(__fadd_rz(__fadd_rn(__fadd_rn(quotient, p.zero), 0.5F), 0x1p23F));
}
// The same for rows whose quotients are not covered by TameCode.
__device__ __forceinline__ uint32_t WildCode(float x, const GroupParameters& p) {
  const float t = __fadd_rn(__fadd_rn(__fdiv_rn(x, p.scale), p.zero), 0.5F);
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

// Bytes of one row (the low or high halves of v) from a lane's 16-bit pieces (quarter tile n: bytes
// 8 n + 2 t, + 1): exchanged within the four lanes so that lane t stores 8 bytes from 8 t on.
template <int kDim>
__device__ __forceinline__ void StoreCodes(uint8_t* row, const uint32_t (&v)[kDim / 32], int which,
                                           bool wanted) {
  const int t = static_cast<int>(threadIdx.x) & 3;
  const uint32_t half = which == 0 ? 0x5410 : 0x7632;
  if constexpr (kDim == 64) {
    if (!wanted) return;
    const uint32_t both = __byte_perm(v[0], v[1], half);
    reinterpret_cast<uint16_t*>(row)[t] = static_cast<uint16_t>(both);
    reinterpret_cast<uint16_t*>(row + 8)[t] = static_cast<uint16_t>(both >> 16);
  } else {
#pragma unroll
    for (int part = 0; part < kDim / 128; ++part) {
      const uint32_t a = __byte_perm(v[4 * part], v[4 * part + 1], half);
      const uint32_t b = __byte_perm(v[4 * part + 2], v[4 * part + 3], half);
      // Lanes 0, 1 collect pieces 0, 1 of lanes t and t + 2; lanes 2, 3 pieces 2, 3 of t - 2 and t.
      const uint32_t received = __shfl_xor_sync(~0U, (t & 2) == 0 ? b : a, 2);
      const uint32_t first = (t & 2) == 0 ? a : received, second = (t & 2) == 0 ? received : b;
      // Even lanes keep the lower piece of both, odd lanes the upper one.
      const uint32_t lower = __byte_perm(first, second, 0x5410);
      const uint32_t upper = __byte_perm(first, second, 0x7632);
      const uint32_t other = __shfl_xor_sync(~0U, (t & 1) == 0 ? upper : lower, 1);
      const uint32_t even = (t & 1) == 0 ? lower : other, odd = (t & 1) == 0 ? other : upper;
      // `even` holds the pieces of the pair's even lanes (x and x + 2), `odd` those of the odd
      // ones.
      const uint2 bytes =
          make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
      if (wanted) *reinterpret_cast<uint2*>(row + 32 * part + 8 * t) = bytes;
    }
  }
}

// bf16 numbers as integers in their order.
__device__ __forceinline__ int Ordinal(uint32_t bits) {
  const int magnitude = static_cast<int>(bits & 0x7fffU);
  return (bits & 0x8000U) != 0 ? -magnitude : magnitude;
}
__device__ __forceinline__ uint32_t FromOrdinal(int ordinal) {
  return ordinal < 0 ? 0x8000U | static_cast<uint32_t>(-ordinal) : static_cast<uint32_t>(ordinal);
}

// Smallest bf16 x with a code of at least `code` in a tame row whose largest limited value is
// `high`; infinity where no value of the row reaches it. Clears `proved` when the guess is not
// confirmed.
__device__ __forceinline__ uint32_t Threshold(const GroupParameters& p, float high, int code,
                                              bool& proved) {
  // x / s + z has to reach y, the smallest number that 1/2 more rounds up to `code`; half a step
  // less rounds to y.
  const float y = code == 1 ? 0.5F - 0x1p-25F : static_cast<float>(code) - 0.5F;
  const float half_step = code == 1 ? 0x1p-26F : (code == 2 ? 0x1p-24F : 0x1p-23F);
  const float guess = __fmul_rn(p.scale, __fsub_rn(__fsub_rn(y, p.zero), half_step));
  const int at = Ordinal(PackBFloat16(guess, 0) & 0xffffU);
  const auto reaches = [&](int ordinal) {
    const float x = __uint_as_float(FromOrdinal(ordinal) << 16);
    return static_cast<int>(TameCode(x, p) & 3U) >= code;
  };
  const bool here = reaches(at), below = reaches(at - 1), third = reaches(here ? at - 2 : at + 1);
  proved = proved && (here ? !below || !third : third);
  const int found = here ? (below ? at - 1 : at) : at + 1;
  const uint32_t bits = FromOrdinal(found);
  const bool reached =
      __uint_as_float(bits << 16) <= high || static_cast<int>(WildCode(high, p)) >= code;
  return reached ? bits : 0x7f80U;
}

// The row pair's thresholds for codes 1, 2, 3. Lane t works out one; proved by all or cleared.
__device__ __forceinline__ void PairThresholds(const GroupParameters& low,
                                               const GroupParameters& high, RowPair top,
                                               bool& proved, uint32_t (&out)[3]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int code = max(lane & 3, 1);
  const uint32_t own =
      Threshold(low, top.low, code, proved) | (Threshold(high, top.high, code, proved) << 16);
#pragma unroll
  for (int i = 0; i < 3; ++i) out[i] = __shfl_sync(~0U, own, (lane & ~3) | (i + 1));
}

// All ones in the halves where x >= bound.
__device__ __forceinline__ uint32_t AtLeast(uint32_t x, uint32_t bound) {
  return __hge2_mask(*reinterpret_cast<const __nv_bfloat162*>(&x),
                     *reinterpret_cast<const __nv_bfloat162*>(&bound));
}

// Codes of both rows by thresholds: v[n] holds bytes 8 n + 2 t, + 1 of the two rows in its halves.
template <int kDim, int kGroups>
__device__ __forceinline__ void CodesByThresholds(const uint32_t (&x)[kDim / 4],
                                                  const uint32_t (&bounds)[kGroups][3],
                                                  uint32_t (&v)[kDim / 32]) {
  constexpr int kQuarterTiles = kDim / 32;
  constexpr int kGroupWords = kDim / 4 / kGroups;
#pragma unroll
  for (int n = 0; n < kQuarterTiles; ++n) {
    v[n] = 0;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int quarter = 0; quarter < 4; ++quarter) {
        const int word = 2 * (n + quarter * kQuarterTiles) + c;
        const uint32_t(&bound)[3] = bounds[word / kGroupWords];
        const uint32_t one = AtLeast(x[word], bound[0]), two = AtLeast(x[word], bound[1]);
        const uint32_t three = AtLeast(x[word], bound[2]);
        const uint32_t bit = 0x00010001U << (2 * quarter + 8 * c);
        v[n] |= (one ^ two ^ three) & bit;
        v[n] |= two & (2 * bit);
      }
    }
  }
}

// The same by the formula for every element.
template <int kDim, int kGroups>
__device__ __noinline__ void CodesByFormula(const uint32_t (&x)[kDim / 4], RowPair limit,
                                            const GroupParameters (&p)[2][kGroups],
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
      bits |= WildCode(value, p[r][word / kGroupWords]) << (2 * quarter + 8 * c + 16 * r);
    }
    v[n] = bits;
  }
}

// Parameters, codes and stores of both rows of a lane; |x| is limited to `limit`.
template <int kDim, int kGroups>
__device__ __forceinline__ void QuantiseRows(const WriteJobParams& job, ScaleKind kind,
                                             const TileRow (&rows)[2], const bool (&wanted)[2],
                                             const uint32_t (&x)[kDim / 4], RowPair limit) {
  constexpr int kGroupWords = kDim / 4 / kGroups;
  const int t = static_cast<int>(threadIdx.x) & 3;
  GroupParameters p[2][kGroups];
  uint32_t bounds[kGroups][3];
  bool tame = true;
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t low = x[group * kGroupWords], high = low;
#pragma unroll
    for (int i = 1; i < kGroupWords; ++i) {
      low = PairMinBFloat16(low, x[group * kGroupWords + i]);
      high = PairMaxBFloat16(high, x[group * kGroupWords + i]);
    }
#pragma unroll
    for (int lane = 1; lane <= 2; lane *= 2) {
      low = PairMinBFloat16(low, __shfl_xor_sync(~0U, low, lane));
      high = PairMaxBFloat16(high, __shfl_xor_sync(~0U, high, lane));
    }
    const auto limited = [](float value, float bound) {
      return fmaxf(fminf(value, bound), -bound);
    };
    const RowPair top{limited(LowBFloat16(high), limit.low),
                      limited(HighBFloat16(high), limit.high)};
    p[0][group] = MakeParameters(limited(LowBFloat16(low), limit.low), top.low, tame);
    p[1][group] = MakeParameters(limited(HighBFloat16(low), limit.high), top.high, tame);
    PairThresholds(p[0][group], p[1][group], top, tame, bounds[group]);
  }
  uint32_t v[kDim / 32];
  if (__all_sync(~0U, tame)) {
    CodesByThresholds<kDim, kGroups>(x, bounds, v);
  } else {
    // Copies, so that the words themselves need no address.
    uint32_t words[kDim / 4];
    GroupParameters parameters[2][kGroups];
    uint32_t codes[kDim / 32];
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) words[i] = x[i];
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      parameters[0][group] = p[0][group];
      parameters[1][group] = p[1][group];
    }
    CodesByFormula<kDim, kGroups>(words, limit, parameters, codes);
#pragma unroll
    for (int i = 0; i < kDim / 32; ++i) v[i] = codes[i];
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t at = rows[r].slot * job.heads + rows[r].head;
    StoreCodes<kDim>(job.codes + at * (kDim / 4), v, r, wanted[r]);
    if (wanted[r]) {
      const int bytes = 2 * (kind == ScaleKind::kF32 ? 4 : 2);
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        if (t == group % 4) {
          StoreScale(job.scales + (at * kGroups + group) * bytes, kind, p[r][group].scale,
                     p[r][group].zero);
        }
      }
    }
  }
}

}  // namespace oscar
