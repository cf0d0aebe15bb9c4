#include <bit>
#include <cstdint>
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

void CheckDim(int64_t dim) {
  if (dim != 64 && dim != 128 && dim != 256) {
    Unsupported("head size", std::to_string(dim), "head sizes 64, 128 and 256 are");
  }
}

// Groups are powers of two up to `most`, one itself.
void CheckGroups(const std::string& what, int64_t groups, int64_t most) {
  if (groups >= 1 && groups <= most && std::has_single_bit(static_cast<uint64_t>(groups))) return;
  std::string fine = "1";
  for (int64_t g = 2; g <= most; g *= 2) fine += (g == most ? " and " : ", ") + std::to_string(g);
  Unsupported(what, std::to_string(groups) + " groups", fine + " groups are");
}

}  // namespace

void CheckCacheShape(const CacheShape& shape) {
  CheckDim(shape.dim);
  CheckGroups("a row of " + std::to_string(shape.dim) + " channels in", shape.groups,
              shape.dim / 16);
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

void CheckAligned(const void* pointer, const char* what, const char* where) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 == 0) return;
  throw Error(ErrorCode::kUsage,
              std::string(what) + " of " + where + " are not at a multiple of 16 bytes");
}

void CheckDecodeShape(const DecodeShape& shape) {
  // Before the groups that can be written, which may be more.
  CheckDim(shape.cache.dim);
  CheckGroups("decoding rows in", shape.cache.groups, 4);
  CheckCacheShape(shape.cache);
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
    Unsupported("a group of", std::to_string(shape.GroupSize()) + " query heads per KV head",
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
    constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() - kWriteTileRows;
    if (job.tokens < 0 || job.heads < 1 || job.heads > kMostRows || job.heads_per_rotation < 1 ||
        job.tokens > kMostRows / job.heads) {
      Unsupported(where + ": " + std::to_string(job.tokens) + " tokens of",
                  std::to_string(job.heads) + " heads",
                  "up to " + std::to_string(kMostRows) + " rows of at least 1 head are");
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
    for (const auto& [pointer, what] : {std::pair<const void*, const char*>{job.rows, "rows"},
                                        {job.rotation, "rotations"},
                                        {job.codes, "codes"},
                                        {job.scales, "scales"},
                                        {job.out_rows, "output rows"}}) {
      CheckAligned(pointer, what, where.c_str());
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
