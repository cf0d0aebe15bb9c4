// Rotate, clip, quantise, pack. Device code.
//
// A warp takes 16 rows. After the multiply with R a lane (g, t) holds channels 8 n + 2 t + {0, 1} of rows
// g and g + 8, rounded to bf16, as words that pair the two rows. Channels j, j + D/4, j + D/2, j + 3 D/4,
// which share a byte, are in the same lane: packing moves nothing between lanes.
//
// Division is IEEE: with r = 1/s rounded, q = x r and one correction q + r (x - q s) give x / s rounded
// for every bf16 x and every s whose reciprocal and remainders stay normal (shown by exhaustion over
// all 2^7 by 2^23 mantissas in tests/cuda/division_test.cc). Other rows take the division instruction.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_select.cuh"

namespace oscar {

// Row of R in shared memory: the order in which a lane's 16-byte loads deliver the channels. A lane
// holds channels 32 s + 8 t .. + 7 of a row; the first four feed multiply step 2 s, the others 2 s + 1.
__device__ __forceinline__ int RotationRow(int channel) {
  const int s = channel >> 5, t = (channel >> 3) & 3, half = (channel >> 2) & 1;
  const int upper = (channel >> 1) & 1, odd = channel & 1;
  return 16 * (2 * s + half) + 8 * upper + 2 * t + odd;
}

template <int kDim>
struct WriteTraits {
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static constexpr int kWords = kDim / 4;        // per lane
  static constexpr int kTiles = kDim / 8;        // column tiles of the multiply
  static constexpr int kQuarterTiles = kDim / 32;
  static constexpr int kMinBlocks = kDim <= 128 ? 2 : 1;
  static constexpr int kRotationBytes = kDim * kDim * 2;
  static_assert(kRotationBytes <= 200 * 1024);
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
    const int row = RotationRow(channel);
    CopyAsync<16>(SharedAddress(shared) +
                      static_cast<uint32_t>(row * kDim * 2 + ((chunk ^ (row & 7)) << 4)),
                  rotation + channel * kDim + 8 * chunk, true);
  }
  CommitCopies();
  WaitCopies<0>();
  __syncthreads();
}

// The two rows of a lane, g and g + 8 of the tile.
struct TileRow {
  int64_t source = 0;  // row of the input, in rows of kDim
  int64_t slot = 0;
  int32_t token = 0, head = 0;
  bool exists = false;
};

__device__ __forceinline__ TileRow FindRow(const WriteJobParams& job, int rotation, int index) {
  TileRow row;
  row.exists = index < job.rows_per_rotation;
  if (!row.exists) return row;
  row.token = index / job.heads_per_rotation;
  row.head = rotation * job.heads_per_rotation + index % job.heads_per_rotation;
  const int64_t block = job.source_slots == nullptr
                            ? row.token
                            : SlotOf(job.source_slots, row.token, job.source_slot_log2);
  row.source = block * job.heads + row.head;
  row.slot = job.slots == nullptr ? row.token : SlotOf(job.slots, row.token, job.slot_log2);
  return row;
}

// Words of the unrotated rows.
template <int kDim>
__device__ __forceinline__ void LoadIdentity(const WriteJobParams& job, const TileRow (&rows)[2],
                                             uint32_t (&x)[kDim / 4]) {
  const int t = static_cast<int>(threadIdx.x) & 3;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    uint32_t pair[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      pair[r] = rows[r].exists ? __ldg(reinterpret_cast<const uint32_t*>(
                                     job.rows + rows[r].source * kDim + 8 * n + 2 * t))
                               : 0;
    }
    x[2 * n] = __byte_perm(pair[0], pair[1], 0x5410);
    x[2 * n + 1] = __byte_perm(pair[0], pair[1], 0x7632);
  }
}

template <int kDim>
__device__ __forceinline__ void LoadRotated(const WriteJobParams& job, const TileRow (&rows)[2],
                                            const char* shared, uint32_t (&x)[kDim / 4]) {
  const int lane = static_cast<int>(threadIdx.x) & 31, t = lane & 3;
  uint4 a[2][kDim / 32];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
#pragma unroll
    for (int s = 0; s < kDim / 32; ++s) {
      a[r][s] = rows[r].exists ? __ldg(reinterpret_cast<const uint4*>(
                                     job.rows + rows[r].source * kDim + 32 * s + 8 * t))
                               : make_uint4(0, 0, 0, 0);
    }
  }
  const int matrix = lane >> 3, row = lane & 7;
  const uint32_t base =
      SharedAddress(shared) + static_cast<uint32_t>(((matrix & 1) * 8 + row) * kDim * 2);
#pragma unroll
  for (int n = 0; n < kDim / 8; n += 2) {
    float even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
    const uint32_t column = base + (((n + (matrix >> 1)) ^ row) << 4);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      uint32_t b[4];
      LoadMatrix4Transposed(b, column + step * 16 * kDim * 2);
      const uint4 low = a[0][step / 2], high = a[1][step / 2];
      const bool second = (step & 1) != 0;
      const uint32_t f[4] = {second ? low.z : low.x, second ? high.z : high.x,
                             second ? low.w : low.y, second ? high.w : high.y};
      MultiplyBFloat16(even, f, b[0], b[1]);
      MultiplyBFloat16(odd, f, b[2], b[3]);
    }
    x[2 * n] = PackBFloat16(even[0], even[2]);
    x[2 * n + 1] = PackBFloat16(even[1], even[3]);
    x[2 * n + 2] = PackBFloat16(odd[0], odd[2]);
    x[2 * n + 3] = PackBFloat16(odd[1], odd[3]);
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

// Bytes of one row from a lane's 16-bit pieces (quarter tile n: bytes 8 n + 2 t, + 1): exchanged within
// the four lanes so that lane t stores 8 bytes from 8 t on.
template <int kDim>
__device__ __forceinline__ void StoreCodes(uint8_t* row, const uint32_t (&v)[kDim / 32], bool wanted) {
  const int t = static_cast<int>(threadIdx.x) & 3;
  if constexpr (kDim == 64) {
    if (!wanted) return;
    reinterpret_cast<uint16_t*>(row)[t] = static_cast<uint16_t>(v[0]);
    reinterpret_cast<uint16_t*>(row + 8)[t] = static_cast<uint16_t>(v[1]);
  } else {
#pragma unroll
    for (int part = 0; part < kDim / 128; ++part) {
      const uint32_t a = v[4 * part] | (v[4 * part + 1] << 16);
      const uint32_t b = v[4 * part + 2] | (v[4 * part + 3] << 16);
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

// Codes, scales and zeros of both rows. kTame: see TameCode.
template <int kDim, int kGroups, bool kTame>
__device__ __forceinline__ void StoreQuantised(const WriteJobParams& job, ScaleKind kind,
                                               const TileRow (&rows)[2], const bool (&wanted)[2],
                                               const uint32_t (&x)[kDim / 4],
                                               const GroupParameters (&p)[2][kGroups],
                                               RowPair limit = {INFINITY, INFINITY}) {
  constexpr int kQuarterTiles = kDim / 32;
  constexpr int kGroupWords = kDim / 4 / kGroups;
  const int t = static_cast<int>(threadIdx.x) & 3;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    uint32_t v[kQuarterTiles];
#pragma unroll
    for (int n = 0; n < kQuarterTiles; ++n) {
      uint32_t bytes[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        uint32_t byte = 0;
#pragma unroll
        for (int quarter = 3; quarter >= 0; --quarter) {
          const int word = 2 * (n + quarter * kQuarterTiles) + c;
          const GroupParameters& g = p[r][word / kGroupWords];
          const float value = HalfOf(x[word], r);
          if constexpr (kTame) {
            byte = byte * 4 + TameCode(value, g);
          } else {
            const float bound = r == 0 ? limit.low : limit.high;
            byte = byte * 4 + WildCode(fmaxf(fminf(value, bound), -bound), g);
          }
        }
        bytes[c] = byte;
      }
      v[n] = __byte_perm(bytes[0], bytes[1], 0x0040) & 0xffffU;
    }
    const int64_t at = rows[r].slot * job.heads + rows[r].head;
    StoreCodes<kDim>(job.codes + at * (kDim / 4), v, wanted[r]);
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

// Limits, parameters, codes and stores of both rows of a lane. `limit` is used where kFloatClamp: the
// threshold is no bf16 number; otherwise x is clamped already.
template <int kDim, int kGroups, bool kFloatClamp>
__device__ __forceinline__ void QuantiseRows(const WriteJobParams& job, ScaleKind kind,
                                             const TileRow (&rows)[2], const bool (&wanted)[2],
                                             const uint32_t (&x)[kDim / 4], RowPair limit) {
  constexpr int kGroupWords = kDim / 4 / kGroups;
  GroupParameters p[2][kGroups];
  bool tame = !kFloatClamp;
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
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float from = HalfOf(low, r), to = HalfOf(high, r);
      if constexpr (kFloatClamp) {
        const float bound = r == 0 ? limit.low : limit.high;
        from = fmaxf(fminf(from, bound), -bound);
        to = fmaxf(fminf(to, bound), -bound);
      }
      p[r][group] = MakeParameters(from, to, tame);
    }
  }
  if (__all_sync(~0U, tame)) {
    StoreQuantised<kDim, kGroups, true>(job, kind, rows, wanted, x, p);
    return;
  }
  if constexpr (kFloatClamp) {
    // Limited values are no bf16 numbers: replace the words' meaning value by value.
    StoreQuantised<kDim, kGroups, false>(job, kind, rows, wanted, x, p, limit);
  } else {
    StoreQuantised<kDim, kGroups, false>(job, kind, rows, wanted, x, p);
  }
}

template <int kDim, int kGroups>
__device__ __forceinline__ void WriteTile(const WriteJobParams& job, ScaleKind kind, int rotation,
                                          int tile, const char* shared) {
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
  const TileRow rows[2] = {FindRow(job, rotation, tile * kWriteTileRows + g),
                           FindRow(job, rotation, tile * kWriteTileRows + g + 8)};
  uint32_t x[kDim / 4];
  if (job.rotation != nullptr) {
    LoadRotated<kDim>(job, rows, shared, x);
  } else {
    LoadIdentity<kDim>(job, rows, x);
  }
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
  RowPair limit{0, 0};
  if (job.rank > 0 && job.clip_rule == ClipRule::kBisection) {
    limit = BisectThreshold<kDim>(x, job.rank);
    QuantiseRows<kDim, kGroups, true>(job, kind, rows, wanted, x, limit);
    return;
  }
  if (job.rank > 1) {
    const uint32_t bound = job.rank <= 8    ? RankLargest<8>(x, job.rank)
                           : job.rank <= 16 ? RankLargest<16>(x, job.rank)
                                            : RankLargestByCounting(x, job.rank);
    const uint32_t negative = bound | 0x80008000U;
#pragma unroll
    for (int i = 0; i < kDim / 4; ++i) {
      x[i] = PairMaxBFloat16(PairMinBFloat16(x[i], bound), negative);
    }
  }
  QuantiseRows<kDim, kGroups, false>(job, kind, rows, wanted, x, limit);
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
  if (job.rotation != nullptr) {
    LoadRotation<kDim>(job.rotation + static_cast<int64_t>(rotation) * kDim * kDim, shared);
  }
  const int tiles = (job.rows_per_rotation + kWriteTileRows - 1) / kWriteTileRows;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  for (int tile = worker * kWriteWarps + warp; tile < tiles; tile += workers * kWriteWarps) {
    WriteTile<kDim, kGroups>(job, p.scale_kind, rotation, tile, shared);
  }
}

}  // namespace oscar
