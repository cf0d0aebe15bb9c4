// Writing rows: rotate, clip, quantise to 2 bits and pack, or keep as bf16.
//
//   x' = bf16(x R),  threshold = the clip rule on |x'|,  x'' = clamp(x', +-threshold),
//   s = max(max - min, 1e-8) / 3,  z = -min / s,  code = trunc(x'' / s + z + 1/2) in 0..3
//
// in float32 with IEEE division, per group of dim / groups channels: on equal x' every byte, scale
// and zero equals the CPU reference. R = identity leaves the rows untouched, but for the sign of
// zeros.
#pragma once

#include <cstdint>
#include <span>

#include "oscar/cuda/cache.h"
#include "oscar/cuda/device.h"

namespace oscar {

// kOrderStatistic: exact, the public prefill writer. kBisection: the public decode flush.
enum class ClipRule : int32_t { kOrderStatistic = 0, kBisection = 1 };

// Rows of one tensor, [tokens, heads, dim] bf16, and what becomes of them. Pointers are multiples
// of 16 bytes. Two destinations exist: quantised rows for slots below `row_slot_offset`, bf16 rows
// (rotated) for slots from it on, at slot - row_slot_offset. A null destination drops its rows.
struct WriteJob {
  const BFloat16* rows = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  // Optional: row block of token i is source_slots[i] instead of i (flush of window rows).
  SlotList source_slots;

  // [dim, dim]; nullptr: identity. Read ahead of the kernel launched right before, which may not
  // write it.
  const BFloat16* rotation = nullptr;
  // One [dim, dim] per KV head, for `heads_per_rotation` consecutive heads each (the group size
  // for queries, 1 for keys and values).
  bool rotation_per_head = false;
  int64_t heads_per_rotation = 1;

  // Where token i goes; data = nullptr: to row i of `out_rows`.
  SlotList slots;
  int64_t row_slot_offset = INT64_MAX;
  uint8_t* codes = nullptr;  // as QuantisedCache: [slots, heads, dim / 4]
  void* scales = nullptr;    // [slots, heads, 2 * groups] of scale_type
  BFloat16* out_rows = nullptr;

  int64_t clip_index = -1;  // element of the ascending |x'| that limits the row; -1: no clipping
  ClipRule clip_rule = ClipRule::kOrderStatistic;
};

// min(floor(ratio * dim), dim - 1), or -1 for ratio <= 0: the clip index of a clip ratio.
int64_t ClipIndexOf(double ratio, int64_t dim);

// Jobs that one launch takes: keys and values of a prefill chunk; keys, values and queries of a
// decode step; keys and values of a flush.
inline constexpr int64_t kMaxWriteJobs = 6;

// Throws what LaunchWrite throws on jobs that do not fit.
void CheckWriteJobs(const CacheShape& shape, std::span<const WriteJob> jobs);

// Runs all jobs in one launch on `stream`; graph safe. `shape.heads` is not used: every job has its
// own. Throws Error(kUnsupported) or Error(kUsage) naming what does not fit, Error(kDevice) when
// the launch fails.
void LaunchWrite(const CacheShape& shape, std::span<const WriteJob> jobs, Stream stream);

}  // namespace oscar
