// Rows of output, rotated or not, from the merge kernel to memory. Device code.
#pragma once

#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

// Channels `channel` to channel + 3 of a row.
template <int kDim>
__device__ __forceinline__ void StoreChannels(const DecodeParams& p, int64_t row, int channel,
                                              const float4& o) {
  if (p.o_is_bf16 != 0) {
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.o) + row * kDim + channel) =
        make_uint2(PackBFloat16(o.x, o.y), PackBFloat16(o.z, o.w));
  } else {
    *reinterpret_cast<float4*>(static_cast<float*>(p.o) + row * kDim + channel) = o;
  }
}

// out[j] = sum_d o[d] R[j, d], a channel j per lane in turn, summed in the order of d. `o` is in
// shared memory.
template <int kDim>
__device__ __forceinline__ void StoreRotated(const DecodeParams& p, int64_t row, const float* o,
                                             int lane) {
  const auto head = static_cast<int>(row / p.group_size % p.kv_heads);
  const uint16_t* const rotation =
      p.v_rotation + static_cast<int64_t>(p.rotation_per_head != 0 ? head : 0) * kDim * kDim;
#pragma unroll 1
  for (int j = lane; j < kDim; j += 32) {
    float sum = 0;
#pragma unroll 4
    for (int d = 0; d < kDim; d += 2) {
      const uint32_t pair = *reinterpret_cast<const uint32_t*>(rotation + j * kDim + d);
      sum = fmaf(o[d], LowBFloat16(pair), sum);
      sum = fmaf(o[d + 1], HighBFloat16(pair), sum);
    }
    if (p.o_is_bf16 != 0) {
      static_cast<__nv_bfloat16*>(p.o)[row * kDim + j] = __float2bfloat16_rn(sum);
    } else {
      static_cast<float*>(p.o)[row * kDim + j] = sum;
    }
  }
}

}  // namespace oscar
