// Decode attention on the device against float64 on the exactly reconstructed cache.
#pragma once

#include <string>
#include <utility>

#include "gpu/device_case.h"

namespace oscar::test {

// The promise of decode.h: relative output error 1e-3, log-sum-exp 1e-4.
inline constexpr double kOutputBound = 1e-3;
inline constexpr double kLseBound = 1e-4;

inline DecodeShape Shape(int64_t q_heads, int64_t kv_heads, int64_t dim = 128, int64_t groups = 1,
                         DType scale = DType::kF32) {
  DecodeShape shape;
  shape.cache = {kv_heads, dim, groups, scale};
  shape.q_heads = q_heads;
  return shape;
}

// A plan that leaves all blocks but `used` of the device without work. `heads`: KV heads per block,
// 0 for the planner's choice.
inline DecodePlan PlanOn(DeviceDecode& device, const DecodeCase& c, int64_t used,
                         int64_t heads = 0) {
  DecodePlan plan = PlanDecode(c.shape, c.lengths, used, heads);
  plan.blocks = device.workspace().blocks();
  plan.block_begin.resize(static_cast<size_t>(plan.blocks + 1), plan.block_begin.back());
  return plan;
}

// With the most KV heads per block and, where plans may, with half of them.
inline void ExpectClose(DecodeCase& c, const std::string& what,
                        double output_bound = kOutputBound) {
  SCOPED_TRACE(what);
  const DecodeResult reference = Reference(c);
  DeviceDecode device(c);
  for (int64_t heads = MostHeadsPerBlock(c.shape); heads >= LeastHeadsPerBlock(c.shape);
       heads /= 2) {
    SCOPED_TRACE(std::to_string(heads) + " heads per block");
    const DecodeResult result = device.Run(PlanOn(device, c, device.workspace().blocks(), heads));
    const Distance distance = Compare(result, reference);
    EXPECT_LE(distance.output, output_bound);
    EXPECT_LE(distance.lse, kLseBound);
    ::testing::Test::RecordProperty(what, std::to_string(distance.output));
  }
}

inline std::string Name(const DecodeShape& s) {
  return std::to_string(s.q_heads) + "x" + std::to_string(s.cache.heads) + "x" +
         std::to_string(s.cache.dim) + "g" + std::to_string(s.cache.groups) +
         std::string(DTypeName(s.cache.scale_type));
}

}  // namespace oscar::test
