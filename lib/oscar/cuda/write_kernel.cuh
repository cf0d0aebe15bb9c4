// Rotate, clip, quantise, pack. Device code.
//
// A warp takes 16 rows, copied into shared memory while it works on the 16 before. After the multiply with
// R a lane (g, t) holds channels 8 n + 2 t + {0, 1} of rows g and g + 8, rounded to bf16, as words that
// pair the two rows. Channels j, j + D/4, j + D/2, j + 3 D/4, which share a byte, are in the same lane.
//
// A code rises with x, so a row has three thresholds: the smallest bf16 x with a code of at least 1, 2, 3.
// They are guessed from the inverse of the formula and proved with the formula itself on both sides;
// then a code is three comparisons, two rows at a time. Rows where that fails take the formula for
// every element.
//
// Division is IEEE: with r = 1/s rounded, q = x r and one correction q + r (x - q s) give x / s rounded
// for every bf16 x and every s whose reciprocal and remainders stay normal (tests/cuda/division_test.cc
// goes through all 2^7 by 2^23 pairs of mantissas).
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_select.cuh"

namespace oscar {

template <int kDim>
struct WriteTraits {
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static constexpr int kWords = kDim / 4;        // per lane
  static constexpr int kTiles = kDim / 8;        // column tiles of the multiply
  static constexpr int kQuarterTiles = kDim / 32;
  static constexpr int kMinBlocks = kDim <= 128 ? 3 : 1;
  static constexpr int kRotationBytes = kDim * kDim * 2;
  static constexpr int kTileBytes = kWriteTileRows * kDim * 2;  // rows of one warp
  static constexpr int kSharedBytes = kRotationBytes + kWriteWarps * kTileBytes;
  static_assert(kMinBlocks * (kSharedBytes + 1024) <= 227 * 1024);
};

__device__ __forceinline__ int64_t SlotOf(const char* slots, int index, int log2_bytes) {
  return log2_bytes == 3 ? reinterpret_cast<const int64_t*>(slots)[index]
                         : static_cast<int64_t>(reinterpret_cast<const int32_t*>(slots)[index]);
}

template <int kDim>
__device__ __forceinline__ void LoadRotation(const uint16_t* rotation, char* shared) {
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kDim * kChunks; i += kWriteThreads) {
    const int channel = i / kChunks, chunk = i % kChunks;
    CopyAsync<16>(SharedAddress(shared) +
                      static_cast<uint32_t>(channel * kDim * 2 + ((chunk ^ (channel & 7)) << 4)),
                  rotation + channel * kDim + 8 * chunk, true);
  }
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
}

// Where a row of a tile goes.
struct TileRow {
  int64_t slot = 0;
  int32_t head = 0;
  bool exists = false;
};

struct TokenHead {
  int32_t token, head;
};

__device__ __forceinline__ TokenHead Locate(const WriteJobParams& job, int rotation, int index) {
  const int token = job.heads_per_rotation_log2 >= 0 ? index >> job.heads_per_rotation_log2
                                                     : index / job.heads_per_rotation;
  return {token, index - token * job.heads_per_rotation + rotation * job.heads_per_rotation};
}

__device__ __forceinline__ TileRow FindRow(const WriteJobParams& job, int rotation, int index) {
  TileRow row;
  row.exists = index < job.rows_per_rotation;
  if (!row.exists) return row;
  const TokenHead at = Locate(job, rotation, index);
  row.head = at.head;
  row.slot = job.slots == nullptr ? at.token : SlotOf(job.slots, at.token, job.slot_log2);
  return row;
}

// Starts the copy of a tile's rows into the warp's shared memory; chunks of 16 bytes are exchanged within
// a row so that eight rows at one chunk meet eight bank groups.
template <int kDim>
__device__ __forceinline__ void CopyTile(const WriteJobParams& job, int rotation, int tile,
                                         uint32_t target) {
  constexpr int kChunks = kDim / 8;
  const int lane = static_cast<int>(threadIdx.x) & 31;
#pragma unroll
  for (int i = 0; i < kWriteTileRows * kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / kChunks, chunk = (i * 32 + lane) % kChunks;
    const int index = tile * kWriteTileRows + row;
    const bool exists = index < job.rows_per_rotation;
    int64_t source = exists ? index : 0;
    if (!job.contiguous && exists) {
      const TokenHead at = Locate(job, rotation, index);
      const int64_t block = job.source_slots == nullptr
                                ? at.token
                                : SlotOf(job.source_slots, at.token, job.source_slot_log2);
      source = block * job.heads + at.head;
    }
    CopyAsync<16>(target + static_cast<uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4)),
                  job.rows + source * kDim + 8 * chunk, exists);
  }
  CommitCopies();
}

// Words of the unrotated rows.
template <int kDim>
__device__ __forceinline__ void LoadIdentity(uint32_t tile, uint32_t (&x)[kDim / 4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    uint32_t pair[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      asm volatile("ld.shared.u32 %0, [%1];"
                   : "=r"(pair[r])
                   : "r"(tile + static_cast<uint32_t>((g + 8 * r) * kDim * 2 + ((n ^ g) << 4) + 4 * t))
                   : "memory");
    }
    x[2 * n] = __byte_perm(pair[0], pair[1], 0x5410);
    x[2 * n + 1] = __byte_perm(pair[0], pair[1], 0x7632);
  }
}

template <int kDim>
__device__ __forceinline__ void LoadRotated(uint32_t tile, uint32_t rotation,
                                            uint32_t (&x)[kDim / 4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int matrix = lane >> 3, row = lane & 7;
  const uint32_t a_row = tile + static_cast<uint32_t>(((matrix & 1) * 8 + row) * kDim * 2);
  const uint32_t b_row = rotation + static_cast<uint32_t>(((matrix & 1) * 8 + row) * kDim * 2);
  // Eight column tiles at a time: enough independent multiplies, and registers for three blocks.
  constexpr int kBlock = 8;
#pragma unroll
  for (int first = 0; first < kDim / 8; first += kBlock) {
    float sum[kBlock][4];
#pragma unroll
    for (int n = 0; n < kBlock; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t a[4];
      LoadMatrix4(a, a_row + static_cast<uint32_t>(((2 * step + (matrix >> 1)) ^ row) << 4));
#pragma unroll
      for (int n = 0; n < kBlock; n += 2) {
        uint32_t b[4];
        LoadMatrix4Transposed(b, b_row + static_cast<uint32_t>((((first + n + (matrix >> 1)) ^ row) << 4) +
                                                               step * 16 * kDim * 2));
        MultiplyBFloat16(sum[n], a, b[0], b[1]);
        MultiplyBFloat16(sum[n + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kBlock; ++n) {
      x[2 * (first + n)] = PackBFloat16(sum[n][0], sum[n][2]);
      x[2 * (first + n) + 1] = PackBFloat16(sum[n][1], sum[n][3]);
    }
  }
}

__device__ __forceinline__ float HalfOf(uint32_t word, int row) {
  return row == 0 ? LowBFloat16(word) : HighBFloat16(word);
}

// Keeps the rows in bf16.
template <int kDim>
__device__ __forceinline__ void StoreRow(const WriteJobParams& job, const TileRow& row, int which, int64_t slot,
                         const uint32_t (&x)[kDim / 4]) {
  if (job.out_rows == nullptr) return;
  const int t = static_cast<int>(threadIdx.x) & 3;
  uint16_t* const out = job.out_rows + (slot * job.heads + row.head) * kDim + 2 * t;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    *reinterpret_cast<uint32_t*>(out + 8 * n) =
        __byte_perm(x[2 * n], x[2 * n + 1], which == 0 ? 0x5410 : 0x7632);
  }
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
  return __float_as_uint(
      __fadd_rz(__fadd_rn(__fadd_rn(quotient, p.zero), 0.5F), 0x1p23F));
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

// Bytes of one row (the low or high halves of v) from a lane's 16-bit pieces (quarter tile n: bytes 8 n +
// 2 t, + 1): exchanged within the four lanes so that lane t stores 8 bytes from 8 t on.
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
      // `even` holds the pieces of the pair's even lanes (x and x + 2), `odd` those of the odd ones.
      const uint2 bytes = make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
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

// Smallest bf16 x with a code of at least `code` in a tame row whose largest limited value is `high`;
// infinity where no value of the row reaches it. Clears `proved` when the guess is not confirmed.
__device__ __forceinline__ uint32_t Threshold(const GroupParameters& p, float high, int code,
                                              bool& proved) {
  // x / s + z has to reach y, the smallest number that 1/2 more rounds up to `code`; half a step less
  // rounds to y.
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
__device__ __forceinline__ void PairThresholds(const GroupParameters& low, const GroupParameters& high,
                                               RowPair top, bool& proved, uint32_t (&out)[3]) {
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int code = max(lane & 3, 1);
  const uint32_t own = Threshold(low, top.low, code, proved) |
                       (Threshold(high, top.high, code, proved) << 16);
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
    const auto limited = [](float value, float bound) { return fmaxf(fminf(value, bound), -bound); };
    const RowPair top{limited(LowBFloat16(high), limit.low), limited(HighBFloat16(high), limit.high)};
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

// One tile, whose rows are in shared memory; starts the copy of the warp's next one.
template <int kDim, int kGroups>
__device__ __forceinline__ void WriteTile(const WriteJobParams& job, ScaleKind kind, int rotation,
                                          int tile, int next, int tiles, uint32_t shared_rotation,
                                          uint32_t shared_rows) {
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
  const TileRow rows[2] = {FindRow(job, rotation, tile * kWriteTileRows + g),
                           FindRow(job, rotation, tile * kWriteTileRows + g + 8)};
  uint32_t x[kDim / 4];
  WaitCopies<0>();
  __syncwarp();
  if (job.rotation != nullptr) {
    LoadRotated<kDim>(shared_rows, shared_rotation, x);
  } else {
    LoadIdentity<kDim>(shared_rows, x);
  }
  __syncwarp();
  if (next < tiles) CopyTile<kDim>(job, rotation, next, shared_rows);
  bool wanted[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool keep = job.slots == nullptr || rows[r].slot >= job.row_slot_offset;
    wanted[r] = rows[r].exists && !keep && job.codes != nullptr;
    if (rows[r].exists && keep) {
      StoreRow<kDim>(job, rows[r], r, job.slots == nullptr ? rows[r].slot
                                                           : rows[r].slot - job.row_slot_offset, x);
    }
  }
  if (__any_sync(~0U, wanted[0] || wanted[1]) == 0) return;
  RowPair limit{INFINITY, INFINITY};
  if (job.rank > 0 && job.clip_rule == ClipRule::kBisection) {
    limit = BisectThreshold<kDim>(x, job.rank);
  } else if (job.rank > 1) {
    const uint32_t bound = job.rank <= 8    ? RankLargest<8>(x, job.rank)
                           : job.rank <= 16 ? RankLargest<16>(x, job.rank)
                                            : RankLargestByCounting(x, job.rank);
    limit = {LowBFloat16(bound), HighBFloat16(bound)};
  }
  QuantiseRows<kDim, kGroups>(job, kind, rows, wanted, x, limit);
}

template <int kDim, int kGroups>
__global__ void __launch_bounds__(kWriteThreads, WriteTraits<kDim>::kMinBlocks)
    WriteKernel(const __grid_constant__ WriteParams p) {
  extern __shared__ __align__(1024) char shared[];
  ReleaseSuccessors();
  WaitForPredecessors();
  const int block = static_cast<int>(blockIdx.x);
  int index = 0;
  while (block >= p.block_begin[index + 1]) ++index;
  const WriteJobParams& job = p.jobs[index];
  const int within = block - p.block_begin[index];
  const int rotation = within % job.rotations;
  const int worker = within / job.rotations;
  const int workers = (p.block_begin[index + 1] - p.block_begin[index]) / job.rotations;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const uint32_t shared_rows = SharedAddress(shared) +
                               static_cast<uint32_t>(WriteTraits<kDim>::kRotationBytes +
                                                     warp * WriteTraits<kDim>::kTileBytes);
  int tile = worker * kWriteWarps + warp;
  const int step = workers * kWriteWarps;
  if (tile * kWriteTileRows < job.rows_per_rotation) CopyTile<kDim>(job, rotation, tile, shared_rows);
  if (job.rotation != nullptr) {
    LoadRotation<kDim>(job.rotation + static_cast<int64_t>(rotation) * kDim * kDim, shared);
  }
  const int tiles = (job.rows_per_rotation + kWriteTileRows - 1) / kWriteTileRows;
  for (; tile < tiles; tile += step) {
    WriteTile<kDim, kGroups>(job, p.scale_kind, rotation, tile, tile + step, tiles,
                             SharedAddress(shared), shared_rows);
  }
  WaitCopies<0>();
}

}  // namespace oscar
