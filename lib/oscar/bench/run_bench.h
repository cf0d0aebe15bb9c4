// The use case of `oscar-verify bench`: a grid of decode attention at model shapes, capacity, and
// decode steps of whole models.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "oscar/bench/bench_device.h"
#include "oscar/core/progress.h"
#include "oscar/core/value.h"

namespace oscar {

struct BenchOptions {
  std::vector<std::string> models = {"qwen3-4b"};
  // Instead of `models`, which is empty then: one shape of attention alone. All three or none.
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  std::vector<int64_t> batches = {1, 8, 32};
  std::vector<int64_t> contexts = {8 * 1024, 32 * 1024, 100 * 1024};
  // Contexts of capacity and of decode steps.
  std::vector<int64_t> step_contexts = {30 * 1024, 60 * 1024, 100 * 1024, 128 * 1024};
  // "random", "sequential": orders of the 8-slot pages.
  std::vector<std::string> orders = {"random", "sequential"};
  bool use_windows = false;  // sink and recent tokens of each request in bf16
  Windows windows;
  int64_t group_size = 0;  // 0: the whole head
  DType scale_type = DType::kF32;
  bool sdpa = true;          // PyTorch's attention beside it where the build has it
  bool whole_model = false;  // decode steps of the models too; they need LibTorch
  bool grid = true;
  int64_t write_tokens = 32 * 1024;  // of a prefill chunk; 0: writes are not measured
  double memory_fraction = 0.9;
};

// The record of docs/formats/bench.md. Cases that do not fit the device's memory are left out with
// a note. Throws Error(kUsage) for options that make no sense, Error(kUnsupported) for shapes that
// the kernels do not take and for `whole_model` in a build without LibTorch's CUDA part,
// Error(kDevice).
Value RunBench(const BenchOptions& options, BenchDevice& device, const RunContext& context);

// The same on a device by name, as OpenBenchDevice takes it.
Value RunBench(const BenchOptions& options, const std::string& device, const RunContext& context);

// Throws what RunBench throws before it measures anything.
void CheckBenchOptions(const BenchOptions& options);

}  // namespace oscar
