// Capacity and decode throughput of whole models, BF16 and INT2 beside each other.
#pragma once

#include <cstdint>
#include <vector>

#include "oscar/bench/bench_device.h"
#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar {

// What the paper reports (arXiv:2605.17757), on an H100 against that system's own BF16 kernels.
inline constexpr double kPaperSpeedup = 3.1;          // decode at batch 1, 100K tokens
inline constexpr double kPaperThroughputRatio = 7.8;  // at equal memory

// Requests of each context that fit beside the weights: [{context, bf16, int2}].
Value::Array CapacityTable(const ModelShape& model, const CacheShape& shape, const Windows& windows,
                           const std::vector<int64_t>& contexts, const MemoryBudget& budget);

// Decode steps at every context: INT2 and BF16 at each batch that fits and at the largest that
// does. [{context, steps: [...], speedup, throughput: {...}}]. Notes say what was left out.
Value::Array MeasureSteps(const ModelShape& model, const DecodeShape& shape, const Windows& windows,
                          const std::vector<int64_t>& batches, const std::vector<int64_t>& contexts,
                          const MemoryBudget& budget, BenchDevice& device,
                          const RunContext& context, Value::Array& notes);

}  // namespace oscar
