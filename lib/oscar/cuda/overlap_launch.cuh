// Launches of kernels that begin while the launches before them end: they wait for those by
// themselves (WaitForPredecessors). Only for sources that nvcc compiles.
#pragma once

#include <cuda_runtime.h>

namespace oscar {

template <typename Params>
cudaError_t LaunchOverlapping(void (*kernel)(Params), int blocks, int threads, int shared_bytes,
                              cudaStream_t stream, const Params& params) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace oscar
