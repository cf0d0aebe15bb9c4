// Rows written into a cache and read back by attention.
#pragma once

#include "gpu/decode_case.h"
#include "gpu/write_rows.h"

namespace oscar::test {

struct RoundTrip {
  DecodeCase c;  // its lists say where the rows go; its codes and scales are to be written
  std::vector<BFloat16> k, v;    // [tokens, heads, dim], history first, then the window
  std::vector<int64_t> targets;  // slots of the rows; the window's from the pool's end on
  double clip;

  RoundTrip(const DecodeShape& shape, int64_t history, int64_t window, double ratio, uint64_t seed)
      : c(shape, {{history, window}}, seed), clip(ratio) {
    Random random(seed + 1);
    const int64_t tokens = history + window;
    for (int64_t i = 0; i < tokens * shape.cache.heads * shape.cache.dim; ++i) {
      k.push_back(ToBFloat16(static_cast<float>(random.Normal())));
      v.push_back(ToBFloat16(static_cast<float>(0.7 * random.Normal())));
    }
    targets = c.quantised_slots;
    for (const int64_t slot : c.row_slots) targets.push_back(c.quantised_pool + slot);
    std::fill(c.k_codes.begin(), c.k_codes.end(), uint8_t{0});
    std::fill(c.v_codes.begin(), c.v_codes.end(), uint8_t{0});
    std::fill(c.k_scale_bytes.begin(), c.k_scale_bytes.end(), uint8_t{0});
    std::fill(c.v_scale_bytes.begin(), c.v_scale_bytes.end(), uint8_t{0});
  }

  WriteJob Job() const {
    WriteJob job;
    job.tokens = static_cast<int64_t>(targets.size());
    job.heads = c.shape.cache.heads;
    job.row_slot_offset = c.quantised_pool;
    job.clip_index = ClipIndexOf(clip, c.shape.cache.dim);
    return job;
  }

  // Writes with the CPU twin into the case.
  void WriteOnHost() {
    WriteJob jobs[2] = {Job(), Job()};
    jobs[0].rows = k.data();
    jobs[0].codes = c.k_codes.data();
    jobs[0].scales = c.k_scale_bytes.data();
    jobs[0].out_rows = c.k_rows.data();
    jobs[1].rows = v.data();
    jobs[1].codes = c.v_codes.data();
    jobs[1].scales = c.v_scale_bytes.data();
    jobs[1].out_rows = c.v_rows.data();
    for (WriteJob& job : jobs) job.slots = {targets.data(), DType::kI64};
    WriteTwin(c.shape.cache, jobs);
  }
};

inline constexpr double kRoundTripClips[] = {0, 0.5, 0.92, 0.96, 0.999, 1};

}  // namespace oscar::test
