// Rotate, clip, quantise, pack. Device code.
//
// A warp takes 16 rows, copied into shared memory while it works on the 16 before. After the
// multiply with R a lane (g, t) holds channels 8 n + 2 t + {0, 1} of rows g and g + 8, rounded to
// bf16, as words that pair the two rows. Channels j, j + D/4, j + D/2, j + 3 D/4, which share a
// byte, are in the same lane.
//
// A code rises with x, so a row has three thresholds: the smallest bf16 x with a code of at least
// 1, 2, 3. They are guessed from the inverse of the formula and proved with the formula itself on
// both sides; then a code is three comparisons, two rows at a time. Rows where that fails take the
// formula for every element.
//
// Division is IEEE: with r = 1/s rounded, q = x r and one correction q + r (x - q s) give x / s
// rounded for every bf16 x and every s whose reciprocal and remainders stay normal
// (tests/cuda/division_test.cc goes through all 2^7 by 2^23 pairs of mantissas).
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_quantise.cuh"
#include "oscar/cuda/write_select.cuh"

namespace oscar {

template <int kDim>
struct WriteTraits {
  static_assert(kDim == 64 || kDim == 128 || kDim == 256);
  static constexpr int kWords = kDim / 4;  // per lane
  static constexpr int kTiles = kDim / 8;  // column tiles of the multiply
  static constexpr int kQuarterTiles = kDim / 32;
  static constexpr int kMinBlocks = kDim <= 128 ? 2 : 1;
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

// Starts the copy of a tile's rows into the warp's shared memory; chunks of 16 bytes are exchanged
// within a row so that eight rows at one chunk meet eight bank groups.
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
      asm volatile(
          "ld.shared.u32 %0, [%1];"
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
  // Eight column tiles at a time: enough independent multiplies.
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
        LoadMatrix4Transposed(
            b, b_row + static_cast<uint32_t>((((first + n + (matrix >> 1)) ^ row) << 4) +
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

// Keeps the rows in bf16.
template <int kDim>
__device__ __forceinline__ void StoreRow(const WriteJobParams& job, const TileRow& row, int which,
                                         int64_t slot, const uint32_t (&x)[kDim / 4]) {
  if (job.out_rows == nullptr) return;
  const int t = static_cast<int>(threadIdx.x) & 3;
  uint16_t* const out = job.out_rows + (slot * job.heads + row.head) * kDim + 2 * t;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    *reinterpret_cast<uint32_t*>(out + 8 * n) =
        __byte_perm(x[2 * n], x[2 * n + 1], which == 0 ? 0x5410 : 0x7632);
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
      StoreRow<kDim>(job, rows[r], r,
                     job.slots == nullptr ? rows[r].slot : rows[r].slot - job.row_slot_offset, x);
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
  const uint32_t shared_rows =
      SharedAddress(shared) + static_cast<uint32_t>(WriteTraits<kDim>::kRotationBytes +
                                                    warp * WriteTraits<kDim>::kTileBytes);
  int tile = worker * kWriteWarps + warp;
  const int step = workers * kWriteWarps;
  if (tile * kWriteTileRows < job.rows_per_rotation)
    CopyTile<kDim>(job, rotation, tile, shared_rows);
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
