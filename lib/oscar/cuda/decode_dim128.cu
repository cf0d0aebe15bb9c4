#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode128(const DecodeParams& params, const DecodeLaunch& launch) {
  return LaunchDim<128>(params, launch);
}

}  // namespace oscar
