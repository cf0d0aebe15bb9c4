// Launch of the write kernel at one head size, included by one source file each.
#pragma once

#include <algorithm>
#include <cstdint>

#include "oscar/cuda/overlap_launch.cuh"
#include "oscar/cuda/write_kernel.cuh"
#include "oscar/cuda/write_launch.h"

namespace oscar {
namespace {

// Times of tiles in proportion, as measured with rotation at 128 channels.
int64_t TileCost(const WriteJobParams& job) {
  if (job.codes == nullptr || job.rank == 0) return 6;
  if (job.clip_rule == ClipRule::kBisection) return 10;
  return job.rank <= 1 ? 6 : job.rank <= 6 ? 7 : job.rank <= 11 ? 8 : job.rank <= 16 ? 9 : 12;
}

template <int kDim, int kGroups>
cudaError_t LaunchInstance(WriteParams& p, int multiprocessors, cudaStream_t stream) {
  using Traits = WriteTraits<kDim>;
  const auto tiles = [](const WriteJobParams& job) -> int64_t {
    return (job.rows_per_rotation + kWriteTileRows - 1) / kWriteTileRows;
  };
  const auto cost = [&](const WriteJobParams& job) {
    return tiles(job) * job.rotations * TileCost(job);
  };
  int64_t wanted = 0, total = 0;
  for (int i = 0; i < p.job_count; ++i) {
    wanted += tiles(p.jobs[i]) * p.jobs[i].rotations;
    total += cost(p.jobs[i]);
  }
  if (wanted == 0) return cudaSuccess;
  // Blocks stay and go through the tiles of one rotation, so that each loads it once. Few tiles
  // get a block each; many are shared out by cost over the blocks that fit at once.
  const int64_t resident = static_cast<int64_t>(multiprocessors) * Traits::kMinBlocks;
  int64_t before = 0;
  for (int i = 0; i < p.job_count; ++i) {
    const WriteJobParams& job = p.jobs[i];
    int64_t each = tiles(job);
    if (wanted > resident && each > 0) {
      const auto border = [&](int64_t at) { return (at * resident + total / 2) / total; };
      const int64_t share = border(before + cost(job)) - border(before);
      each = std::clamp<int64_t>(share / job.rotations, 1, each);
    }
    before += cost(job);
    p.block_begin[i + 1] = p.block_begin[i] + static_cast<int32_t>(each * job.rotations);
  }
  const int32_t blocks = p.block_begin[p.job_count];
  for (int i = p.job_count; i < kMaxWriteJobs; ++i) p.block_begin[i + 1] = INT32_MAX;
  const int bytes = Traits::kSharedBytes;
  const auto kernel = WriteKernel<kDim, kGroups>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  return LaunchOverlapping<WriteParams>(kernel, blocks, Traits::kThreads, bytes, stream, p);
}

}  // namespace

template <int kDim>
cudaError_t LaunchWriteDim(WriteParams& p, int64_t groups, int multiprocessors,
                           cudaStream_t stream) {
  switch (groups) {
    case 1:
      return LaunchInstance<kDim, 1>(p, multiprocessors, stream);
    case 2:
      return LaunchInstance<kDim, 2>(p, multiprocessors, stream);
    case 4:
      return LaunchInstance<kDim, 4>(p, multiprocessors, stream);
    case 8:
      if constexpr (kDim >= 128) return LaunchInstance<kDim, 8>(p, multiprocessors, stream);
      break;
    case 16:
      if constexpr (kDim == 256) return LaunchInstance<kDim, 16>(p, multiprocessors, stream);
      break;
    default:
      break;
  }
  return cudaErrorInvalidValue;  // CheckCacheShape lets no other number through
}

}  // namespace oscar
