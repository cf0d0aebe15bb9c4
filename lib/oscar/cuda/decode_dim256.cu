#include "oscar/cuda/decode_kernel.cuh"

namespace oscar {

cudaError_t LaunchDecode256(const DecodeParams& params, int64_t blocks, int slot_bytes,
                            cudaStream_t stream) {
  return LaunchDim<256>(params, blocks, slot_bytes, stream);
}

}  // namespace oscar
