// What the write kernel gets by value. Plain C++.
#pragma once

#include <cstdint>

#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/write.h"

namespace oscar {

inline constexpr int kWriteWarpRows = 16;   // rows of a tile that one warp takes
inline constexpr int kWriteGroupWarps = 4;  // warps that multiply together
inline constexpr int kWriteTileRows = kWriteGroupWarps * kWriteWarpRows;

struct WriteJobParams {
  const uint16_t* rows;
  const char* source_slots;  // null: rows in order
  const uint16_t* rotation;  // null: identity
  const char* slots;         // null: bf16 rows in order
  uint8_t* codes;
  char* scales;
  uint16_t* out_rows;
  int64_t row_slot_offset;
  int32_t heads;
  int32_t heads_per_rotation;  // rows of one rotation: this many heads of every token
  uint32_t divide_factor;      // index / heads_per_rotation = (2 index * factor >> 32) >> shift
  int32_t divide_shift;
  bool contiguous;  // row i of the only rotation is row i of `rows`
  int32_t rotations;
  int32_t rows_per_rotation;
  int32_t source_slot_log2, slot_log2;
  int32_t rank;  // the threshold is the rank-th largest |x|; 0: no clipping
  ClipRule clip_rule;
};

struct WriteParams {
  WriteJobParams jobs[kMaxWriteJobs];
  int32_t block_begin[kMaxWriteJobs + 1];  // blocks of a job: a multiple of its rotations
  int32_t job_count;
  ScaleKind scale_kind;
};

}  // namespace oscar
