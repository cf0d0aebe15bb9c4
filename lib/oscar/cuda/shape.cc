#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "oscar/core/error.h"
#include "oscar/cuda/cache.h"
#include "oscar/cuda/decode_limits.h"
#include "oscar/cuda/plan.h"
#include "oscar/cuda/write.h"
#include "oscar/cuda/write_params.h"

namespace oscar {
namespace {

[[noreturn]] void Unsupported(const std::string& what, const std::string& found,
                              const std::string& hint) {
  throw Error(ErrorCode::kUnsupported, what + " " + found + " is not supported by the CUDA kernels",
              hint);
}

}  // namespace

void CheckCacheShape(const CacheShape& shape) {
  if (shape.dim != 64 && shape.dim != 128 && shape.dim != 256) {
    Unsupported("head size", std::to_string(shape.dim), "head sizes 64, 128 and 256 are");
  }
  if (shape.groups < 1 || !std::has_single_bit(static_cast<uint64_t>(shape.groups)) ||
      shape.dim / shape.groups < 16) {
    Unsupported("a row of " + std::to_string(shape.dim) + " channels in",
                std::to_string(shape.groups) + " groups",
                "1, 2, 4, 8 or 16 groups of at least 16 channels are");
  }
  if (shape.scale_type != DType::kF32 && shape.scale_type != DType::kF16 &&
      shape.scale_type != DType::kBF16) {
    Unsupported("scale type", std::string(DTypeName(shape.scale_type)), "f32, f16 and bf16 are");
  }
}

void CheckSlotType(const SlotList& list, const char* name) {
  if (list.type != DType::kI32 && list.type != DType::kI64) {
    Unsupported(std::string(name) + " of type", std::string(DTypeName(list.type)),
                "i32 and i64 are");
  }
}

void CheckDecodeShape(const DecodeShape& shape) {
  CheckCacheShape(shape.cache);
  if (shape.cache.groups > 4) {
    Unsupported("decoding rows in", std::to_string(shape.cache.groups) + " groups",
                "1, 2 and 4 groups are");
  }
  const int64_t heads = shape.cache.heads;
  if (heads < 1 || heads > 1024) {
    Unsupported("a KV head count of", std::to_string(heads), "1 to 1024 are");
  }
  if (shape.q_heads < 1 || shape.q_heads % heads != 0) {
    throw Error(ErrorCode::kUsage, std::to_string(shape.q_heads) +
                                       " query heads are not a multiple of " +
                                       std::to_string(heads) + " KV heads");
  }
  if (shape.GroupSize() > kMaxGroupSize) {
    Unsupported(std::to_string(shape.GroupSize()) + " query heads per KV head", "",
                "up to " + std::to_string(kMaxGroupSize) + " are");
  }
}

void CheckWriteJobs(const CacheShape& shape, std::span<const WriteJob> jobs) {
  CheckCacheShape(shape);
  if (std::cmp_greater(jobs.size(), kMaxWriteJobs)) {
    Unsupported("a write of", std::to_string(jobs.size()) + " jobs",
                "up to " + std::to_string(kMaxWriteJobs) + " are");
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    const WriteJob& job = jobs[i];
    const std::string where = "write job " + std::to_string(i);
    CheckSlotType(job.slots, "the slot list of a write");
    CheckSlotType(job.source_slots, "the source list of a write");
    if (job.tokens < 0 || job.heads < 1 || job.heads_per_rotation < 1 ||
        job.tokens * job.heads > std::numeric_limits<int32_t>::max() - kWriteTileRows) {
      Unsupported(where + ": " + std::to_string(job.tokens) + " tokens of",
                  std::to_string(job.heads) + " heads",
                  "fewer than 2^31 rows of at least 1 head are");
    }
    if (job.rotation_per_head && job.heads % job.heads_per_rotation != 0) {
      throw Error(ErrorCode::kUsage, where + ": " + std::to_string(job.heads) +
                                         " heads are not a multiple of " +
                                         std::to_string(job.heads_per_rotation) + " per rotation");
    }
    if (job.tokens > 0 && job.rows == nullptr)
      throw Error(ErrorCode::kUsage, where + " has no rows");
    if (job.codes != nullptr && (job.scales == nullptr || job.slots.data == nullptr)) {
      throw Error(ErrorCode::kUsage, where + ": codes need scales and slots");
    }
    if (job.clip_index < -1 || job.clip_index >= shape.dim) {
      throw Error(ErrorCode::kUsage, where + ": clip index " + std::to_string(job.clip_index) +
                                         " is outside rows of " + std::to_string(shape.dim) +
                                         " channels");
    }
  }
}

int64_t ClipIndexOf(double ratio, int64_t dim) {
  if (!(ratio > 0)) return -1;
  const double position = ratio * static_cast<double>(dim);
  const auto last = static_cast<double>(dim - 1);
  return static_cast<int64_t>(position < last ? position : last);
}

}  // namespace oscar
