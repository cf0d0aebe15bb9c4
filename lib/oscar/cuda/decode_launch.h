// One function per head size, each in a source file of its own: the instances take long to compile.
#pragma once

#include <cuda_runtime_api.h>

#include "oscar/cuda/decode_params.h"

namespace oscar {

cudaError_t LaunchDecode64(const DecodeParams& params, cudaStream_t stream);
cudaError_t LaunchDecode128(const DecodeParams& params, cudaStream_t stream);
cudaError_t LaunchDecode256(const DecodeParams& params, cudaStream_t stream);

}  // namespace oscar
