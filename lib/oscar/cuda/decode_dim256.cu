#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode256(const DecodeParams& params, const DecodeLaunch& launch) {
  return LaunchDim<256>(params, launch);
}

}  // namespace oscar
