// The kernel that adds partial results up. Device code.
//
// Every piece of a request and block of heads leaves a partial result in memory. This kernel is
// launched behind the attention and adds them up, in an order that depends on the plan alone. How
// rows are cut and dealt out is chosen here; decode_merge_warp.cuh has what a warp does with its
// share. The blocks are so small that they fit beside those of the attention: they are there when
// the last piece is done, and keep no multiprocessor from the attention launched next. Their few
// registers leave shared memory for what is under way.
#pragma once

#include <cuda_runtime.h>

#include <type_traits>

#include "oscar/cuda/decode_merge_sum.cuh"
#include "oscar/cuda/decode_merge_warp.cuh"
#include "oscar/cuda/decode_params.h"

namespace oscar {

template <int kNumber>
using Constant = std::integral_constant<int, kNumber>;

template <int kDim>
__global__ void __launch_bounds__(32 * kMergeWarps, kMergeBlocks)
    MergeKernel(const __grid_constant__ DecodeParams p) {
  __shared__ MergeMemory memory[kMergeWarps];
  ReleaseSuccessors();
  // So that every warp has something to do, rows are cut, into whole lines of the cache at least,
  // then their partial results dealt out.
  constexpr int kMostLog2 = kDim == 64 ? 4 : 5;
  const auto run = [&](auto units, auto share, auto one) {
    MergeWarp<kDim, units.value, share.value, one.value != 0>(p, memory).Run();
  };
  const int lines = p.plan->requests * p.kv_heads * p.group_size * (kDim / 32);
  const int warps = static_cast<int>(gridDim.x) * kMergeWarps;
  if (lines * 4 <= warps) return run(Constant<3>(), Constant<2>(), Constant<1>());
  if (lines * 2 <= warps) return run(Constant<3>(), Constant<1>(), Constant<1>());
  if (lines <= warps) return run(Constant<3>(), Constant<0>(), Constant<1>());
  if (lines <= 2 * warps) return run(Constant<4>(), Constant<0>(), Constant<1>());
  run(Constant<kMostLog2>(), Constant<0>(), Constant<0>());
}

}  // namespace oscar
