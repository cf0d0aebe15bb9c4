#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode64(const DecodeParams& params, const DecodeLaunch& launch) {
  return LaunchDim<64>(params, launch);
}

}  // namespace oscar
