// One function per head size, each in a source file of its own: the instances take long to compile.
#pragma once

#include <cuda_runtime_api.h>

#include "oscar/cuda/decode_params.h"

namespace oscar {

struct DecodeLaunch {
  int64_t clusters = 0;  // thread block clusters, 0: blocks of their own
  cudaStream_t stream = nullptr;
  // Where not null: nothing is launched, but the clusters that run at once are counted.
  int* active_clusters = nullptr;
};

cudaError_t LaunchDecode64(const DecodeParams& params, const DecodeLaunch& launch);
cudaError_t LaunchDecode128(const DecodeParams& params, const DecodeLaunch& launch);
cudaError_t LaunchDecode256(const DecodeParams& params, const DecodeLaunch& launch);

}  // namespace oscar
