// Rotate, clip, quantise, pack. Device code.
//
// Blocks stay on their multiprocessors and go through the tiles (write_rotate.cuh). With the rows
// in registers, bf16 and two to a word, a warp finds the clip threshold of 16 rows by sorting
// networks (write_select.cuh), works out scale, zero and the three numbers where the code changes
// (write_thresholds.cuh), and compares (write_quantise.cuh). Channels j, j + D/4, j + D/2,
// j + 3 D/4, which share a byte, are in the same lane.
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

// Stores one of the rows in bf16, as row `at`.
template <int kDim>
__device__ __forceinline__ void StoreRow(const WriteJobParams& job, int which, int64_t at,
                                         const uint32_t (&x)[kDim / 4]) {
  const int t = static_cast<int>(threadIdx.x) & 3;
  uint16_t* const out = job.out_rows + at * kDim + 2 * t;
#pragma unroll
  for (int n = 0; n < kDim / 8; ++n) {
    *reinterpret_cast<uint32_t*>(out + 8 * n) =
        __byte_perm(x[2 * n], x[2 * n + 1], which == 0 ? 0x5410 : 0x7632);
  }
}

// Loads the slot of a row; nothing where it has none.
__device__ __forceinline__ RawSlot LoadRowSlot(const WriteJobParams& job, int rotation, int index) {
  if (job.slots == nullptr || index >= job.rows_per_rotation) return {};
  return LoadSlot(job.slots, Locate(job, rotation, index).token, job.slot_log2);
}

__device__ __forceinline__ RowTarget FindTarget(const WriteJobParams& job, int rotation, int index,
                                                RawSlot raw) {
  const TokenHead at = Locate(job, rotation, index);
  int64_t slot = at.token;
  bool keep = true;
  if (job.slots != nullptr) {
    slot = raw.Number(job.slot_log2);
    keep = slot >= job.row_slot_offset;
  }
  const bool dropped = slot < 0 || (keep ? job.out_rows == nullptr : job.codes == nullptr);
  if (job.slots != nullptr && keep) slot -= job.row_slot_offset;
  RowTarget target{slot * job.heads + at.head, keep ? RowUse::kKeep : RowUse::kQuantise};
  if (dropped || index >= job.rows_per_rotation) target.use = RowUse::kNone;
  return target;
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

// What becomes of the rows in registers; `target` is that of row t / 2 of the lane's two.
template <int kDim, int kGroups>
__device__ __forceinline__ void FinishRows(const WriteJobParams& job, ScaleKind kind,
                                           const RowTarget& target, const uint32_t (&x)[kDim / 4]) {
  if (__any_sync(~0U, target.use == RowUse::kKeep)) {
    const int four = static_cast<int>(threadIdx.x) & 28;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int64_t at = __shfl_sync(~0U, target.at, four + 2 * r);
      const int use = __shfl_sync(~0U, static_cast<int>(target.use), four + 2 * r);
      if (use == static_cast<int>(RowUse::kKeep)) StoreRow<kDim>(job, r, at, x);
    }
  }
  if (!__any_sync(~0U, target.use == RowUse::kQuantise)) return;
  const PairRanges<kGroups> ranges = FindRanges<kDim, kGroups>(x);
  QuantiseRows<kDim, kGroups>(job, kind, target, x, ranges, ClipLimit(job, x));
}

// The tiles of one of `workers` blocks: its warpgroups take every workers-th tile of the job's
// rotation in turn.
template <int kDim, int kGroups>
__device__ __forceinline__ void WriteTiles(const WriteJobParams& job, ScaleKind kind, int rotation,
                                           int worker, int workers, uint32_t shared) {
  using Traits = WriteTraits<kDim>;
  // The exchange tells the compiler that all threads of a warp have the same number, so that loop
  // counters and the job's parameters can stay in uniform registers.
  const int warp = __shfl_sync(~0U, static_cast<int>(threadIdx.x) >> 5, 0);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  const int offset = warp % kWriteGroupWarps * kWriteWarpRows;
  const int end = (job.rows_per_rotation + kWriteTileRows - 1) / kWriteTileRows;
  const uint32_t buffers =
      shared +
      static_cast<uint32_t>(Traits::kRotationBytes + warp * Traits::kStages * Traits::kWarpBytes);
  const int step = workers * Traits::kGroupCount;
  int tile = worker + warp / kWriteGroupWarps * workers;
  const auto copy = [&](int which, uint32_t target) {
    if (which < end) CopyRows<kDim>(job, rotation, which * kWriteTileRows + offset, target);
    CommitCopies();  // empty groups too: the count of groups tells which tile has arrived
  };
  if (job.rotation != nullptr) {
    CopyRotation<kDim>(job.rotation + static_cast<int64_t>(rotation) * kDim * kDim, shared);
    CommitCopies();
  }
  WaitForPredecessors();
#pragma unroll
  for (int i = 0; i < Traits::kStages; ++i) {
    copy(tile + i * step, buffers + static_cast<uint32_t>(i * Traits::kWarpBytes));
  }
  // The row whose target this lane finds: the first of its two in lanes 0 and 1 of four.
  int own = tile * kWriteTileRows + offset + (lane >> 2) + ((lane & 2) << 2);
  if (job.rotation != nullptr) {
    WaitCopies<Traits::kStages>();
    FenceForMultiplies();
    __syncthreads();
  }
  uint32_t buffer = buffers;
#pragma unroll 1
  for (; tile < end; tile += step) {
    const RawSlot slot = LoadRowSlot(job, rotation, own);
    uint32_t x[kDim / 4];
    RowTarget target;
    // While the multiplies run.
    const auto after_reads = [&] {
      __syncwarp();
      copy(tile + Traits::kStages * step, buffer);
      target = FindTarget(job, rotation, own, slot);
    };
    WaitCopies<Traits::kStages - 1>();
    __syncwarp();
    if (job.rotation != nullptr) {
      RotateRows<kDim>(buffer, shared, x, after_reads);
    } else {
      LoadRows<kDim>(buffer, x);
      after_reads();
    }
    FinishRows<kDim, kGroups>(job, kind, target, x);
    own += step * kWriteTileRows;
    if constexpr (Traits::kStages == 2) buffer = 2 * buffers + Traits::kWarpBytes - buffer;
  }
  WaitCopies<0>();
}

template <int kDim, int kGroups>
__global__ void __launch_bounds__(WriteTraits<kDim>::kThreads, WriteTraits<kDim>::kMinBlocks)
    WriteKernel(const __grid_constant__ WriteParams p) {
  extern __shared__ __align__(1024) char shared[];
  ReleaseSuccessors();
  const int block = static_cast<int>(blockIdx.x);
  // Without a branch the compiler sees that all threads read the same job.
  int index = 0;
#pragma unroll
  for (int i = 1; i < kMaxWriteJobs; ++i) index += block >= p.block_begin[i] ? 1 : 0;
  const WriteJobParams& job = p.jobs[index];
  const int within = block - p.block_begin[index];
  const int worker = within / job.rotations;
  const int workers = (p.block_begin[index + 1] - p.block_begin[index]) / job.rotations;
  WriteTiles<kDim, kGroups>(job, p.scale_kind, within % job.rotations, worker, workers,
                            SharedAddress(shared));
}

}  // namespace oscar
