// Rows to write, for the kernel and for its CPU twin, and what the twin writes.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/rotations.h"
#include "gpu/write_rows.h"
#include "oscar/cuda/twin.h"

namespace oscar::test {

// One tensor and where its rows go.
struct WriteCase {
  CacheShape shape;
  int64_t tokens = 0;
  std::vector<BFloat16> rows, rotation;
  std::vector<int64_t> slots;  // empty: rows keep their places, nothing is quantised
  int64_t pool = 0, row_pool = 0;
  int64_t guard = 0;  // slots in front of the pool's first one, which nothing may touch
  bool per_head = false;
  int64_t heads_per_rotation = 1;
  bool wide = true;
  double clip = 0;
  ClipRule rule = ClipRule::kOrderStatistic;

  WriteCase(const CacheShape& s, int64_t n, uint64_t seed) : shape(s), tokens(n) {
    Random random(seed);
    rows = HardRows(random, n * s.heads, s.dim);
    pool = n + 5;
    row_pool = n + 3;
    for (int64_t i = 0; i < n; ++i) slots.push_back(n - 1 - i);
  }
  int64_t matrices() const { return per_head ? shape.heads / heads_per_rotation : 1; }
  int64_t HeadsPerMatrix() const { return per_head ? heads_per_rotation : shape.heads; }
  // Every third token goes to the bf16 tier.
  void KeepEveryThird() {
    for (int64_t i = 0; i < tokens; i += 3) slots[static_cast<size_t>(i)] = pool + i;
  }
  // Every fourth token goes nowhere.
  void DropEveryFourth() {
    guard = 3;
    for (int64_t i = 1; i < tokens; i += 4) slots[static_cast<size_t>(i)] = -1 - i / 4 % guard;
  }
  // Of the first slot in the codes and scales.
  int64_t FirstCode() const { return guard * shape.heads * shape.CodeBytes(); }
  int64_t FirstScale() const { return guard * shape.heads * shape.ScaleBytes(); }
  void Rotate(uint64_t seed) {
    Random random(seed);
    rotation = NormalMatrices(random, matrices(), shape.dim);
  }
};

struct Written {
  std::vector<uint8_t> codes, scales;
  std::vector<BFloat16> rows;
};

inline Written Blank(const WriteCase& c) {
  return {
      std::vector<uint8_t>(
          static_cast<size_t>(c.FirstCode() + c.pool * c.shape.heads * c.shape.CodeBytes()), 0xaa),
      std::vector<uint8_t>(
          static_cast<size_t>(c.FirstScale() + c.pool * c.shape.heads * c.shape.ScaleBytes()),
          0xaa),
      std::vector<BFloat16>(static_cast<size_t>(c.row_pool * c.shape.heads * c.shape.dim),
                            BFloat16{0xaaaa})};
}

inline WriteJob Job(const WriteCase& c) {
  WriteJob job;
  job.tokens = c.tokens;
  job.heads = c.shape.heads;
  job.rotation_per_head = c.per_head;
  job.heads_per_rotation = c.heads_per_rotation;
  job.row_slot_offset = c.pool;
  job.clip_index = ClipIndexOf(c.clip, c.shape.dim);
  job.clip_rule = c.rule;
  return job;
}

inline Written OnHost(const WriteCase& c) {
  Written out = Blank(c);
  WriteJob job = Job(c);
  job.rows = c.rows.data();
  job.rotation = c.rotation.empty() ? nullptr : c.rotation.data();
  if (!c.slots.empty()) {
    job.slots = {c.slots.data(), DType::kI64};
    job.codes = out.codes.data() + c.FirstCode();
    job.scales = out.scales.data() + c.FirstScale();
  }
  job.out_rows = out.rows.data();
  WriteTwin(c.shape, {&job, 1});
  return out;
}

// The case with all tokens in the bf16 tier, in their order.
inline WriteCase AllToRows(WriteCase c) {
  for (size_t i = 0; i < c.slots.size(); ++i) c.slots[i] = c.pool + static_cast<int64_t>(i);
  return c;
}

// The case without slots, as queries are rotated: rows stay where they are.
inline WriteCase AsQueries(WriteCase c) {
  c.slots.clear();
  return c;
}

// The rows that AllToRows(c) or AsQueries(c) gave.
inline std::vector<BFloat16> RowsOf(const WriteCase& c, const Written& written) {
  return {written.rows.begin(), written.rows.begin() + static_cast<std::ptrdiff_t>(c.rows.size())};
}

// The case on these rows, which are rotated already.
inline WriteCase OnRotated(WriteCase c, std::vector<BFloat16> rows) {
  c.rotation.clear();
  c.rows = std::move(rows);
  return c;
}

}  // namespace oscar::test
