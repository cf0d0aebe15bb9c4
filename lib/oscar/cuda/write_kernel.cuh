// Rotate, clip, quantise, pack. Device code.
//
// Blocks stay on their multiprocessors and go through the tiles (write_rotate.cuh). With the rows
// in registers, bf16 and two to a word, a warp finds the clip threshold of 16 rows by sorting
// networks (write_select.cuh), works out scale, zero and the three numbers where the code changes,
// and compares (write_quantise.cuh). Channels j, j + D/4, j + D/2, j + 3 D/4, which share a byte,
// are in the same lane.
//
// A code rises with x, so a row has three thresholds: the smallest bf16 x with a code of at least
// 1, 2, 3. They are guessed from the inverse of the formula and proved with the formula itself on
// both sides. Rows where that fails take the formula for every element.
//
// Division is IEEE: with r = 1/s rounded, q = x r and one correction q + r (x - q s) give x / s
// rounded for every bf16 x and every s whose reciprocal and remainders stay normal
// (tests/cuda/division_test.cc goes through all 2^7 by 2^23 pairs of mantissas).
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/mma.cuh"
#include "oscar/cuda/write_params.h"
#include "oscar/cuda/write_quantise.cuh"
#include "oscar/cuda/write_rotate.cuh"
#include "oscar/cuda/write_select.cuh"

namespace oscar {

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

__device__ __forceinline__ TileRow FindRow(const WriteJobParams& job, int rotation, int index) {
  TileRow row;
  row.exists = index < job.rows_per_rotation;
  if (!row.exists) return row;
  const TokenHead at = Locate(job, rotation, index);
  row.head = at.head;
  row.slot = job.slots == nullptr ? at.token : SlotOf(job.slots, at.token, job.slot_log2);
  return row;
}

template <int kWords>
__device__ __forceinline__ RowPair ClipLimit(const WriteJobParams& job,
                                             const uint32_t (&x)[kWords]) {
  constexpr int kDim = 4 * kWords;
  if (job.rank > 0 && job.clip_rule == ClipRule::kBisection)
    return BisectThreshold<kDim>(x, job.rank);
  if (job.rank <= 1) return {INFINITY, INFINITY};
  const uint32_t bound = job.rank <= 6    ? RankLargest<2, 6>(x, job.rank)
                         : job.rank <= 11 ? RankLargest<7, 11>(x, job.rank)
                         : job.rank <= 16 ? RankLargest<12, 16>(x, job.rank)
                                          : RankLargestByCounting(x, job.rank);
  return {LowBFloat16(bound), HighBFloat16(bound)};
}

// What becomes of the rows in registers.
template <int kDim, int kGroups>
__device__ __forceinline__ void FinishRows(const WriteJobParams& job, ScaleKind kind,
                                           const TileRow (&rows)[2],
                                           const uint32_t (&x)[kDim / 4]) {
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
  QuantiseRows<kDim, kGroups>(job, kind, rows, wanted, x, ClipLimit(job, x));
}

// The tiles of one warpgroup: `tile`, tile + step, ... of the job's rotation.
template <int kDim, int kGroups>
__device__ __forceinline__ void WriteTiles(const WriteJobParams& job, ScaleKind kind, int rotation,
                                           int tile, int step, uint32_t shared) {
  using Traits = WriteTraits<kDim>;
  const int warp = static_cast<int>(threadIdx.x) >> 5;
  const int g = (static_cast<int>(threadIdx.x) & 31) >> 2;
  const int offset = warp % kWriteGroupWarps * kWriteTileRows;
  const int tiles = (job.rows_per_rotation + kWriteGroupRows - 1) / kWriteGroupRows;
  const uint32_t buffers =
      shared +
      static_cast<uint32_t>(Traits::kRotationBytes + warp * Traits::kStages * Traits::kTileBytes);
  const auto copy = [&](int which, uint32_t target) {
    if (which < tiles) {
      CopyRows<kDim>(job, rotation, which * kWriteGroupRows + offset, target);
    }
    CommitCopies();  // empty groups too: the count of groups tells which tile has arrived
  };
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    copy(tile + i * step, buffers + static_cast<uint32_t>(i * Traits::kTileBytes));
  }
  if (job.rotation != nullptr) {
    CopyRotation<kDim>(job.rotation + static_cast<int64_t>(rotation) * kDim * kDim, shared);
    CommitCopies();
    WaitCopies<0>();
    FenceForMultiplies();
    __syncthreads();
  }
  TileRow rows[2] = {FindRow(job, rotation, tile * kWriteGroupRows + offset + g),
                     FindRow(job, rotation, tile * kWriteGroupRows + offset + g + 8)};
  uint32_t stage = 0;
  for (; tile < tiles; tile += step) {
    const uint32_t buffer = buffers + stage * Traits::kTileBytes;
    stage = stage + 1 == Traits::kStages ? 0 : stage + 1;
    TileRow next[2];
    uint32_t x[kDim / 4];
    const auto after_reads = [&] {
      __syncwarp();
      copy(tile + Traits::kStages * step, buffer);
      const int first = (tile + step) * kWriteGroupRows + offset + g;
      next[0] = FindRow(job, rotation, first);
      next[1] = FindRow(job, rotation, first + 8);
    };
    WaitCopies<Traits::kStages - 1>();
    __syncwarp();
    if (job.rotation != nullptr) {
      RotateRows<kDim>(buffer, shared, x, after_reads);
    } else {
      LoadRows<kDim>(buffer, x);
      after_reads();
    }
    FinishRows<kDim, kGroups>(job, kind, rows, x);
    rows[0] = next[0];
    rows[1] = next[1];
  }
  WaitCopies<0>();
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
  const int worker = within / job.rotations;
  const int workers = (p.block_begin[index + 1] - p.block_begin[index]) / job.rotations;
  constexpr int kBlockGroups = kWriteWarps / kWriteGroupWarps;
  const int group = static_cast<int>(threadIdx.x) / (32 * kWriteGroupWarps);
  WriteTiles<kDim, kGroups>(job, p.scale_kind, within % job.rotations,
                            worker * kBlockGroups + group, workers * kBlockGroups,
                            SharedAddress(shared));
}

}  // namespace oscar
