// Shapes of decode attention that the kernels and their CPU twin run, and references of a few
// heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gpu/decode_case.h"
#include "oscar/core/parallel.h"

namespace oscar::test {

inline DecodeShape ShapeOf(int64_t kv_heads, int64_t group_size, int64_t dim, int64_t groups = 1,
                           DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, groups, scale};
  shape.q_heads = kv_heads * group_size;
  return shape;
}

// For HardDecodeCases: several groups, eight query heads per KV head and more, scales of 16 bits.
inline std::vector<DecodeShape> HardShapesInGroups() {
  return {ShapeOf(4, 4, 128, 2), ShapeOf(8, 4, 128, 4), ShapeOf(2, 4, 64, 2),  ShapeOf(2, 4, 64, 4),
          ShapeOf(4, 2, 256, 2), ShapeOf(4, 4, 256, 4), ShapeOf(2, 12, 128, 4)};
}
inline std::vector<DecodeShape> HardShapesOfManyQueries() {
  return {ShapeOf(8, 8, 128), ShapeOf(2, 8, 128), ShapeOf(4, 16, 128), ShapeOf(1, 8, 64)};
}
inline std::vector<DecodeShape> HardShapesWithScalesOf(DType type) {
  return {ShapeOf(8, 4, 128, 1, type), ShapeOf(8, 8, 128, 1, type), ShapeOf(2, 4, 64, 4, type),
          ShapeOf(2, 4, 256, 2, type), ShapeOf(1, 4, 128, 1, type)};
}

// Every number of query heads per KV head.
inline std::vector<DecodeShape> EveryGroupSize(int64_t kv_heads, int64_t groups = 1) {
  std::vector<DecodeShape> shapes;
  for (const int64_t dim : {64, 128, 256}) {
    for (int64_t group_size = 1; group_size <= 16; ++group_size) {
      shapes.push_back(ShapeOf(kv_heads, group_size, dim, groups));
    }
  }
  return shapes;
}

// Makes all 2-bit values positive, so that sums over them do not cancel.
inline void MakeValuesPositive(DecodeCase& c) {
  for (size_t i = 1; i < c.v_scales.size(); i += 2) c.v_scales[i] = -1;
  c.StoreScales();
}

// One KV head of a case, without rotation, and its queries.
inline DecodeCase OneHead(const DecodeCase& c, int64_t head) {
  const CacheShape& cache = c.shape.cache;
  const int64_t group_size = c.shape.GroupSize();
  DecodeCase one(ShapeOf(1, group_size, cache.dim, cache.groups, cache.scale_type), c.lengths, 1);
  const auto take = [head](auto& to, const auto& from, int64_t heads, int64_t size) {
    for (int64_t i = 0; i < static_cast<int64_t>(to.size()) / size; ++i) {
      std::copy_n(from.begin() + (i * heads + head) * size, size, to.begin() + i * size);
    }
  };
  take(one.k_codes, c.k_codes, cache.heads, cache.CodeBytes());
  take(one.v_codes, c.v_codes, cache.heads, cache.CodeBytes());
  take(one.k_scales, c.k_scales, cache.heads, 2 * cache.groups);
  take(one.v_scales, c.v_scales, cache.heads, 2 * cache.groups);
  take(one.k_rows, c.k_rows, cache.heads, cache.dim);
  take(one.v_rows, c.v_rows, cache.heads, cache.dim);
  take(one.q, c.q, cache.heads, group_size * cache.dim);
  one.StoreScales();
  one.quantised_slots = c.quantised_slots;
  one.row_slots = c.row_slots;
  one.logit_scale = c.logit_scale;
  return one;
}

// What a result of the case says of one KV head.
inline DecodeResult OneHead(const DecodeCase& c, const DecodeResult& result, int64_t head) {
  const int64_t group_size = c.shape.GroupSize(), dim = c.shape.cache.dim;
  DecodeResult one;
  for (size_t r = 0; r < c.lengths.size(); ++r) {
    const int64_t first = static_cast<int64_t>(r) * c.shape.q_heads + head * group_size;
    one.o.insert(one.o.end(), result.o.begin() + first * dim,
                 result.o.begin() + (first + group_size) * dim);
    one.lse.insert(one.lse.end(), result.lse.begin() + first,
                   result.lse.begin() + first + group_size);
  }
  return one;
}

// References of some heads of a long case, side by side.
inline std::vector<DecodeResult> ReferencesOf(const DecodeCase& c,
                                              const std::vector<int64_t>& heads) {
  std::vector<DecodeResult> references(heads.size());
  const auto count = static_cast<int64_t>(heads.size());
  ParallelFor(count, static_cast<int>(count), [&](int64_t i) {
    DecodeCase one = OneHead(c, heads[static_cast<size_t>(i)]);
    references[static_cast<size_t>(i)] = Reference(one);
  });
  return references;
}

}  // namespace oscar::test
