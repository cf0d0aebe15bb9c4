// (scale, zero) of the tokens that a lane computes with. Device code.
#pragma once

#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

struct ScaleZero {
  float scale, zero;
};

// From shared memory.
template <ScaleKind kKind>
__device__ __forceinline__ ScaleZero LoadScaleZero(uint32_t at) {
  if constexpr (kKind == ScaleKind::kF32) {
    const float2 pair = LoadShared2(at);
    return {pair.x, pair.y};
  } else {
    const uint32_t packed = LoadShared(at);
    if constexpr (kKind == ScaleKind::kF16) {
      // Constant rows overflow half precision; an infinity counts as the largest number.
      const float2 pair = UnpackHalf(LimitMagnitudes(packed, 0x7bff7bffU));
      return {pair.x, pair.y};
    }
    return {LowBFloat16(packed), HighBFloat16(packed)};
  }
}

// (scale, zero) of a lane's tokens of a tile, g + 8 i: K and V.
template <int kGroups>
struct TileScales {
  ScaleZero key[4][kGroups], value[4][kGroups];

  __device__ __forceinline__ float SumOfValues() const {
    float sum = value[0][0].scale;
#pragma unroll
    for (int i = 1; i < 4 * kGroups; ++i) sum += value[i / kGroups][i % kGroups].scale;
    return sum;
  }

  // `base`: where the lane's first token's stand in shared memory; those of the values `to_values`
  // bytes behind.
  __device__ __forceinline__ void Load(const DecodeParams& p, uint32_t base, int to_values,
                                       int heads_log2) {
    if (p.scale_kind == ScaleKind::kF32) {
      LoadAs<ScaleKind::kF32>(p, base, to_values, heads_log2);
    } else if (p.scale_kind == ScaleKind::kF16) {
      LoadAs<ScaleKind::kF16>(p, base, to_values, heads_log2);
    } else {
      LoadAs<ScaleKind::kBF16>(p, base, to_values, heads_log2);
    }
  }

 private:
  template <ScaleKind kKind>
  __device__ __forceinline__ void LoadAs(const DecodeParams& p, uint32_t base, int to_values,
                                         int heads_log2) {
    constexpr int kBytes = kKind == ScaleKind::kF32 ? 8 : 4;
    const int row_bytes =
        kGroups == 1 ? kBytes << heads_log2 : 1 << (p.head_scale_log2 + heads_log2);
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      const int group = i % kGroups;
      const int index = kGroups == 1 ? 0 : group * p.groups / 4;
      const uint32_t at =
          base + static_cast<uint32_t>(i / kGroups * 8 * row_bytes + index * kBytes);
      key[i / kGroups][group] = LoadScaleZero<kKind>(at);
      value[i / kGroups][group] = LoadScaleZero<kKind>(at + static_cast<uint32_t>(to_values));
    }
  }
};

}  // namespace oscar
