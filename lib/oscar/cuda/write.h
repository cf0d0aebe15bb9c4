// Writing rows: rotate, clip, quantise to 2 bits and pack, or keep as bf16.
//
//   x' = bf16(x R),  threshold = the clip rule on |x'|,  x'' = clamp(x', +-threshold),
//   s = max(max - min, 1e-8) / 3,  z = -min / s,  code = trunc(x'' / s + z + 1/2) in 0..3
//
// in float32 with IEEE division, per group of dim / groups channels: on equal x' every byte, scale
// and zero equals the CPU reference. R = identity leaves the rows untouched, but for the sign of
// zeros. Rows must be finite: nothing checks it, and what is written of others is not defined.
#pragma once

#include <cstdint>
#include <span>

#include "oscar/cuda/cache.h"
#include "oscar/cuda/device.h"

namespace oscar {

// kOrderStatistic: exact, the public prefill writer. kBisection: the public decode flush.
enum class ClipRule : int32_t { kOrderStatistic = 0, kBisection = 1 };

// Rows of one tensor, [tokens, heads, dim] bf16, and what becomes of them. Tensors are at multiples
// of 16 bytes. Two destinations exist: quantised rows for slots below `row_slot_offset`, bf16 rows
// (rotated) for slots from it on, at slot - row_slot_offset. A null destination drops its rows, a
// negative slot its token. No job of a launch may write what another or itself reads: jobs run in
// no order.
struct WriteJob {
  const BFloat16* rows = nullptr;
  int64_t tokens = 0;
  int64_t heads = 0;
  // Optional: row block of token i is source_slots[i] instead of i (flush of window rows, which are
  // rotated already: `rotation` is null then). A negative one gives rows of zeros.
  SlotList source_slots;

  // [dim, dim]; nullptr: identity. Read ahead of launches that still run, see docs/cuda.md: none of
  // those may write it.
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

  // Element of the ascending |x'| that limits the row; by bisection, a limit with at most dim less
  // this many above it. -1: no clipping.
  int64_t clip_index = -1;
  ClipRule clip_rule = ClipRule::kOrderStatistic;
};

// min(floor(ratio * dim), dim - 1), or -1 for ratio <= 0: the clip index of a clip ratio.
int64_t ClipIndexOf(double ratio, int64_t dim);

// Jobs that one launch takes: keys and values of a prefill chunk; keys, values and queries of a
// decode step; keys and values of a flush; or what comes together of these.
inline constexpr int64_t kMaxWriteJobs = 6;

// Throws what LaunchWrite throws on jobs that do not fit.
void CheckWriteJobs(const CacheShape& shape, std::span<const WriteJob> jobs);

// Runs all jobs in one launch on `stream`; graph safe. `shape.heads` is not used: every job has its
// own. Throws Error(kUnsupported) or Error(kUsage) naming what does not fit, tensors that are not
// aligned among it, Error(kDevice) when the launch fails.
void LaunchWrite(const CacheShape& shape, std::span<const WriteJob> jobs, Stream stream);

}  // namespace oscar
