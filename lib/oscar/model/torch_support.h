// Small helpers around ATen. Internal to the module: this header shows LibTorch types.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

namespace oscar {

// "cpu", "cuda" (device 0) or "cuda:<i>". Throws Error(kUsage) for another name and Error(kDevice)
// when the device cannot be used.
at::Device ParseDevice(const std::string& name);

// Number of threads of ATen's CPU operations and of at::parallel_for, for the whole process.
void SetTorchThreads(int threads);

// Runs `body` without gradients; turns ATen's exceptions into Error(kMemory), Error(kDevice) or
// CheckFailure, whose text starts with `what`.
void GuardTorch(const std::string& what, const std::function<void()>& body);

// A float32 tensor on `device` that shares the vector's memory when device is the CPU. The vector
// must outlive it.
at::Tensor Wrap(const std::vector<float>& data, at::IntArrayRef shape, at::Device device);

// body(begin, end) over [0, count) in one piece per thread of ATen's pool, at least `grain` items a
// piece; in one piece inside another parallel loop. Rethrows an exception of a piece.
void ParallelRange(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace oscar
