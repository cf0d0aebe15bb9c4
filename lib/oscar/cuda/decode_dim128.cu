#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode128(const DecodeParams& params, cudaStream_t stream) {
  return LaunchDim<128>(params, stream);
}

}  // namespace oscar
