#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode64(const DecodeParams& params, cudaStream_t stream) {
  return LaunchDim<64>(params, stream);
}

}  // namespace oscar
