#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode256(const DecodeParams& params, cudaStream_t stream) {
  return LaunchDim<256>(params, stream);
}

}  // namespace oscar
