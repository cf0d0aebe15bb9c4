// The host side of LaunchWrite.
#include "oscar/cuda/write.h"

#include <algorithm>
#include <bit>

#include "oscar/cuda/cuda_error.h"
#include "oscar/cuda/write_kernel.cuh"

namespace oscar {
namespace {

WriteJobParams MakeJob(const CacheShape& shape, const WriteJob& job) {
  WriteJobParams p{};
  p.rows = reinterpret_cast<const uint16_t*>(job.rows);
  p.source_slots = static_cast<const char*>(job.source_slots.data);
  p.rotation = reinterpret_cast<const uint16_t*>(job.rotation);
  p.slots = static_cast<const char*>(job.slots.data);
  p.codes = job.codes;
  p.scales = static_cast<char*>(job.scales);
  p.out_rows = reinterpret_cast<uint16_t*>(job.out_rows);
  p.row_slot_offset = job.row_slot_offset;
  p.heads = static_cast<int32_t>(job.heads);
  const bool per_head = job.rotation != nullptr && job.rotation_per_head;
  p.heads_per_rotation = per_head ? static_cast<int32_t>(job.heads_per_rotation) : p.heads;
  p.rotations = p.heads / p.heads_per_rotation;
  p.rows_per_rotation = static_cast<int32_t>(job.tokens) * p.heads_per_rotation;
  const auto per_rotation = static_cast<uint32_t>(p.heads_per_rotation);
  p.heads_per_rotation_log2 =
      std::has_single_bit(per_rotation) ? std::countr_zero(per_rotation) : -1;
  p.contiguous = p.rotations == 1 && p.source_slots == nullptr;
  p.source_slot_log2 = job.source_slots.type == DType::kI64 ? 3 : 2;
  p.slot_log2 = job.slots.type == DType::kI64 ? 3 : 2;
  p.rank = job.clip_index < 0 ? 0 : static_cast<int32_t>(shape.dim - job.clip_index);
  p.clip_rule = job.clip_rule;
  return p;
}

int64_t BlocksWanted(const WriteJobParams& job) {
  constexpr int64_t kRows = kWriteTileRows * kWriteWarps;
  return (job.rows_per_rotation + kRows - 1) / kRows * job.rotations;
}

template <int kDim, int kGroups>
cudaError_t LaunchInstance(WriteParams& p, int multiprocessors, cudaStream_t stream) {
  using Traits = WriteTraits<kDim>;
  int64_t wanted = 0;
  for (int i = 0; i < p.job_count; ++i) wanted += BlocksWanted(p.jobs[i]);
  if (wanted == 0) return cudaSuccess;
  // Blocks stay and go through the tiles, so that each loads its rotation once.
  const int64_t resident = static_cast<int64_t>(multiprocessors) * Traits::kMinBlocks;
  for (int i = 0; i < p.job_count; ++i) {
    const WriteJobParams& job = p.jobs[i];
    const int64_t own = BlocksWanted(job);
    int64_t blocks = wanted <= resident ? own : own * resident / wanted;
    blocks = std::max<int64_t>(1, blocks / job.rotations) * job.rotations;
    if (own == 0) blocks = 0;
    p.block_begin[i + 1] = p.block_begin[i] + static_cast<int32_t>(blocks);
  }
  const int bytes = Traits::kSharedBytes;
  const auto kernel = WriteKernel<kDim, kGroups>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(p.block_begin[p.job_count]));
  config.blockDim = dim3(kWriteThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, static_cast<const WriteParams&>(p));
}

template <int kDim>
cudaError_t LaunchDim(WriteParams& p, int64_t groups, int multiprocessors, cudaStream_t stream) {
  switch (groups) {
    case 1:
      return LaunchInstance<kDim, 1>(p, multiprocessors, stream);
    case 2:
      return LaunchInstance<kDim, 2>(p, multiprocessors, stream);
    case 4:
      return LaunchInstance<kDim, 4>(p, multiprocessors, stream);
    case 8:
      if constexpr (kDim == 256) return LaunchInstance<kDim, 8>(p, multiprocessors, stream);
      break;
    default:
      break;
  }
  return cudaErrorInvalidValue;  // CheckCacheShape lets no other number through
}

}  // namespace

void LaunchWrite(const CacheShape& shape, std::span<const WriteJob> jobs, Stream stream) {
  CheckWriteJobs(shape, jobs);
  WriteParams p{};
  p.job_count = static_cast<int32_t>(jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) p.jobs[i] = MakeJob(shape, jobs[i]);
  p.scale_kind = shape.scale_type == DType::kF32   ? ScaleKind::kF32
                 : shape.scale_type == DType::kF16 ? ScaleKind::kF16
                                                   : ScaleKind::kBF16;
  int device = 0, multiprocessors = 0;
  CheckCuda(cudaGetDevice(&device), "query of the current CUDA device");
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
            "query of the current CUDA device");
  const auto on = static_cast<cudaStream_t>(stream);
  const cudaError_t status = shape.dim == 64 ? LaunchDim<64>(p, shape.groups, multiprocessors, on)
                             : shape.dim == 128
                                 ? LaunchDim<128>(p, shape.groups, multiprocessors, on)
                                 : LaunchDim<256>(p, shape.groups, multiprocessors, on);
  CheckCuda(status, "launch of the write kernel");
}

}  // namespace oscar
