#include <cuda_runtime.h>

#include <cstdint>
#include <stdexcept>

#include "gpu/poison.h"

namespace oscar::test {
namespace {

constexpr int kBytes = 227 * 1024;  // all of a multiprocessor: one block each

__global__ void Poison() {
  extern __shared__ uint32_t words[];
  for (int i = static_cast<int>(threadIdx.x); i < kBytes / 4; i += static_cast<int>(blockDim.x)) {
    *const_cast<volatile uint32_t*>(words + i) = ~0U;
  }
}

}  // namespace

void PoisonSharedMemory(Stream stream) {
  int device = 0, multiprocessors = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaFuncSetAttribute(Poison, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  Poison<<<multiprocessors, 1024, kBytes, static_cast<cudaStream_t>(stream)>>>();
  if (cudaGetLastError() != cudaSuccess) throw std::runtime_error("cannot poison shared memory");
}

}  // namespace oscar::test
