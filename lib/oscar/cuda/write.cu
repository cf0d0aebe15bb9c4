// The host side of LaunchWrite.
#include "oscar/cuda/write.h"

#include <bit>

#include "oscar/cuda/cuda_error.h"
#include "oscar/cuda/write_launch.h"

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
  // Division by a constant: 2^(31 + shift) / d rounded up, where d <= 2^shift, is exact for indices
  // below 2^31.
  const auto divisor = static_cast<uint32_t>(p.heads_per_rotation);
  p.divide_shift = std::bit_width(divisor - 1);
  p.divide_factor =
      static_cast<uint32_t>(((uint64_t{1} << (31 + p.divide_shift)) + divisor - 1) / divisor);
  p.contiguous = p.rotations == 1 && p.source_slots == nullptr;
  p.source_slot_log2 = job.source_slots.type == DType::kI64 ? 3 : 2;
  p.slot_log2 = job.slots.type == DType::kI64 ? 3 : 2;
  p.rank = job.clip_index < 0 ? 0 : static_cast<int32_t>(shape.dim - job.clip_index);
  p.clip_rule = job.clip_rule;
  return p;
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
  const cudaError_t status =
      shape.dim == 64    ? LaunchWriteDim<64>(p, shape.groups, multiprocessors, on)
      : shape.dim == 128 ? LaunchWriteDim<128>(p, shape.groups, multiprocessors, on)
                         : LaunchWriteDim<256>(p, shape.groups, multiprocessors, on);
  CheckCuda(status, "launch of the write kernel");
}

}  // namespace oscar
