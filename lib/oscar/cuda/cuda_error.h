// CUDA status codes as errors of the toolkit. Only for sources compiled with the CUDA headers.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "oscar/core/error.h"

namespace oscar {

inline void CheckCuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  const ErrorCode code =
      status == cudaErrorMemoryAllocation ? ErrorCode::kMemory : ErrorCode::kDevice;
  throw Error(code, std::string(what) + ": " + cudaGetErrorString(status) + " (" +
                        cudaGetErrorName(status) + ")");
}

}  // namespace oscar
