// The kernels of decode attention: partial results of every piece of a plan, and their merge.
#pragma once

#include <cuda_runtime.h>

#include "oscar/cuda/decode_launch.h"
#include "oscar/cuda/decode_quantised_piece.cuh"
#include "oscar/cuda/decode_rows_piece.cuh"

namespace oscar {

// The plan and the slot lists are read before the kernels launched earlier are waited for: a kernel
// right before this one must not write them. kHeadsLog2: KV heads per block, -1 where only known at
// run time.
template <int kDim, int kCols, int kGroups, int kHeadsLog2>
__global__ void __launch_bounds__((DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>::kThreads),
                                  (DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>::kMinBlocks))
    DecodeKernel(const __grid_constant__ DecodeParams p) {
  extern __shared__ __align__(1024) char shared[];
  ReleaseSuccessors();
  const int begin = p.block_begin[blockIdx.x];
  const int end = p.block_begin[blockIdx.x + 1];
  for (int i = begin; i < end; ++i) {
    const PlanPiece piece = p.pieces[i];
    if (piece.tier == Tier::kQuantised) {
      QuantisedPiece<kDim, kCols, kGroups, kHeadsLog2>(p, piece, shared);
    } else {
      RowsPiece<kDim, kCols, kGroups, kHeadsLog2>(p, piece, shared);
    }
    __syncthreads();
  }
  // Blocks without work: the kernel after this one counts on what came before it.
  WaitForPredecessors();
}

template <int kDim, int kCols, int kGroups, int kHeadsLog2>
cudaError_t LaunchInstance(const DecodeParams& params, int64_t blocks, int slot_bytes,
                           cudaStream_t stream) {
  using Traits = DecodeTraits<kDim, kCols, kGroups, kHeadsLog2>;
  const int bytes = Traits::SharedBytes(params.heads_log2, slot_bytes);
  const auto kernel = DecodeKernel<kDim, kCols, kGroups, kHeadsLog2>;
  const cudaError_t status =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (status != cudaSuccess) return status;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(Traits::kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(bytes);
  config.stream = stream;
  config.attrs = &overlap;
  config.numAttrs = 1;
  return cudaLaunchKernelEx(&config, kernel, params);
}

template <int kDim, int kCols, int kGroups>
cudaError_t LaunchHeads(const DecodeParams& params, int64_t blocks, int slot_bytes,
                        cudaStream_t stream) {
  if constexpr (AllowsWideBlocks(kDim, kCols)) {
    if (params.heads_log2 == kWideHeadsLog2) {
      return LaunchInstance<kDim, kCols, kGroups, kWideHeadsLog2>(params, blocks, slot_bytes,
                                                                  stream);
    }
  }
  return params.heads_log2 == 2
             ? LaunchInstance<kDim, kCols, kGroups, 2>(params, blocks, slot_bytes, stream)
             : LaunchInstance<kDim, kCols, kGroups, -1>(params, blocks, slot_bytes, stream);
}

template <int kDim, int kCols>
cudaError_t LaunchGroups(const DecodeParams& params, int64_t blocks, int slot_bytes,
                         cudaStream_t stream) {
  return params.groups > 1 ? LaunchHeads<kDim, kCols, 4>(params, blocks, slot_bytes, stream)
                           : LaunchHeads<kDim, kCols, 1>(params, blocks, slot_bytes, stream);
}

template <int kDim>
cudaError_t LaunchDim(const DecodeParams& params, int64_t blocks, int slot_bytes,
                      cudaStream_t stream) {
  if (params.group_size <= 4) return LaunchGroups<kDim, 4>(params, blocks, slot_bytes, stream);
  if (params.group_size <= 8) return LaunchGroups<kDim, 8>(params, blocks, slot_bytes, stream);
  return LaunchGroups<kDim, 16>(params, blocks, slot_bytes, stream);
}

}  // namespace oscar
