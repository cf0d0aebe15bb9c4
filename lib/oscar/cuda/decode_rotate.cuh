// Rows of output times the transposed value rotation, behind the sum of partial results. Device
// code.
//
// out[j] = sum_d o[d] R[j, d] is a multiply with R as it lies in memory as the B operand. Both sides
// take the channels of two steps in the same order, so that a lane reads 16 bytes of R at a time. A
// float32 row is split into a bf16 number and a bf16 rest: 2^-17 of it is lost.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/decode_params.h"
#include "oscar/cuda/mma.cuh"

namespace oscar {

inline constexpr int kRotateWarps = 4;  // of a block

// A warp takes 16 rows that share a rotation and some channels of their output.
template <int kDim>
class RotateWarp {
  static constexpr int kTiles = kDim == 256 ? 2 : 4;  // of eight channels of output
  static constexpr int kSlices = kDim / (8 * kTiles);
  static constexpr int kSteps = kDim / 32;  // of two multiplies

 public:
  __device__ explicit RotateWarp(const DecodeParams& p)
      : p_(p), per_head_(p.rotation_per_head != 0), lane_(static_cast<int>(threadIdx.x) & 31) {
    q_heads_ = p.kv_heads * p.group_size;
    // Rows of one rotation: these many of every request.
    group_ = per_head_ ? p.group_size : q_heads_;
    rows_ = p.plan->requests * group_;
  }

  __device__ __forceinline__ void Run() {
    const int row_tiles = (rows_ + 15) / 16;
    const int items = row_tiles * kSlices * (per_head_ ? p_.kv_heads : 1);
    const int warps = static_cast<int>(gridDim.x) * kRotateWarps;
    // Neighbouring items on different multiprocessors.
    for (int item = static_cast<int>((threadIdx.x >> 5) * gridDim.x + blockIdx.x); item < items;
         item += warps) {
      const int slice = item % kSlices;
      const int tile = item / kSlices;
      const int head = tile / row_tiles;
      ReadRotation(head, slice);
      WaitForPredecessors();  // the rotation is older than they are, the rows are not
      Multiply(head, (tile - head * row_tiles) * 16);
      Store(head, (tile - head * row_tiles) * 16, slice);
    }
    WaitForPredecessors();
  }

 private:
  // Where row `n` of those that share rotation `head` is in the output.
  __device__ __forceinline__ int64_t Row(int head, int n) const {
    const int request = n / group_;
    return static_cast<int64_t>(request) * q_heads_ + head * (per_head_ ? group_ : 0) +
           (n - request * group_);
  }

  __device__ __forceinline__ void ReadRotation(int head, int slice) {
    const uint16_t* const from = p_.v_rotation + static_cast<int64_t>(head) * kDim * kDim +
                                 (slice * 8 * kTiles + (lane_ >> 2)) * kDim + 8 * (lane_ & 3);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        b_[tile][step] = __ldg(reinterpret_cast<const uint4*>(from + tile * 8 * kDim + 32 * step));
      }
    }
  }

  // Eight numbers of a row as bf16 pairs and the rests as bf16 pairs; zero where the row is missing.
  struct Split {
    uint32_t head[4], rest[4];
  };
  __device__ __forceinline__ Split Read(int head, int n, int step) const {
    float x[8] = {};
    if (n < rows_) {
      const float* const from = p_.unrotated + Row(head, n) * kDim + 32 * step + 8 * (lane_ & 3);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 four = *reinterpret_cast<const float4*>(from + 4 * i);
        x[4 * i] = four.x;
        x[4 * i + 1] = four.y;
        x[4 * i + 2] = four.z;
        x[4 * i + 3] = four.w;
      }
    }
    Split s;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s.head[i] = PackBFloat16(x[2 * i], x[2 * i + 1]);
      s.rest[i] = PackBFloat16(x[2 * i] - LowBFloat16(s.head[i]),
                               x[2 * i + 1] - HighBFloat16(s.head[i]));
    }
    return s;
  }

  __device__ __forceinline__ void Multiply(int head, int first) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) out_[i / 4][i % 4] = 0;
    const int n = first + (lane_ >> 2);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Split low = Read(head, n, step), high = Read(head, n + 8, step);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t a[4] = {low.head[2 * half], high.head[2 * half], low.head[2 * half + 1],
                               high.head[2 * half + 1]};
        const uint32_t r[4] = {low.rest[2 * half], high.rest[2 * half], low.rest[2 * half + 1],
                               high.rest[2 * half + 1]};
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4& b = b_[tile][step];
          const uint32_t b0 = half == 0 ? b.x : b.z, b1 = half == 0 ? b.y : b.w;
          MultiplyBFloat16(out_[tile], a, b0, b1);
          MultiplyBFloat16(out_[tile], r, b0, b1);
        }
      }
    }
  }

  __device__ __forceinline__ void Store(int head, int first, int slice) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int n = first + (lane_ >> 2) + 8 * half;
      if (n >= rows_) continue;
      const int64_t at = Row(head, n) * kDim + slice * 8 * kTiles + 2 * (lane_ & 3);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const float x = out_[tile][2 * half], y = out_[tile][2 * half + 1];
        if (p_.o_is_bf16 != 0) {
          reinterpret_cast<uint32_t*>(p_.o)[(at + 8 * tile) / 2] = PackBFloat16(x, y);
        } else {
          *reinterpret_cast<float2*>(static_cast<float*>(p_.o) + at + 8 * tile) = make_float2(x, y);
        }
      }
    }
  }

  const DecodeParams& p_;
  const bool per_head_;
  const int lane_;
  int q_heads_, group_, rows_;
  uint4 b_[kTiles][kSteps];
  float out_[kTiles][4];
};

template <int kDim>
__global__ void __launch_bounds__(32 * kRotateWarps)
    RotateKernel(const __grid_constant__ DecodeParams p) {
  ReleaseSuccessors();
  RotateWarp<kDim>(p).Run();
}

}  // namespace oscar
